"""Connections to relays that a stranger has named (RELAYS R-13): only https, only public addresses, and few of them."""
from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
import urllib.parse
from typing import Callable, Mapping

from .transport import Response, StreamTransport, TransportFailed

MAX_NEW = 16  # hosts in an hour to which there was no connection before
HOUR = 3600.0
MAX_HOSTS = 1024  # hosts that are remembered
CONNECT_SECONDS = 10.0

# The addresses that the gateways of the relay exclude too (docs: GATEWAYS §6).
_PUBLIC6 = ipaddress.ip_network("2000::/3")
_EXCLUDED = [
    ipaddress.ip_network(text)
    for text in (
        "2001::/23 2001:db8::/32 2002::/16 3fff::/20 0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 "
        "172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 "
        "203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
    ).split()
]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, and not of this machine."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if isinstance(ip, ipaddress.IPv6Address) and ip not in _PUBLIC6:
        return False
    return not any(ip.version == net.version and ip in net for net in _EXCLUDED) and not _is_own(ip)


def _is_own(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address belongs to this machine. If it does, a connection to it also comes from it."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(ip), 9))  # it sends nothing
            return str(probe.getsockname()[0]) == str(ip)
        except OSError:
            return False  # there is no way to it


def objection_to(url: str) -> str:
    """Why a URL may not be contacted; empty: it may, if its address is public."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError:
        return "it is no URL"
    if parts.scheme != "https":
        return "it does not begin with https://"
    if port != 443 and port < 1024:
        return "its port is below 1024"
    literal = ":" in host or host.replace(".", "").isdigit()
    if literal and not is_public(host):
        return "its address is not public"
    if not literal and ("." not in host or host.rstrip(".").endswith((".localhost", ".local", ".internal"))):
        return "its host is not a public name"
    return ""


class Dialler(StreamTransport):
    """The transport for these relays. clock is a monotonic clock, in seconds."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None, *, clock: Callable[[], float] = time.monotonic):
        super().__init__(ssl_context)
        self._clock = clock
        self._new: dict[str, float] = {}  # the hosts that were new in the last hour, and when
        self._answered: dict[str, None] = {}  # the hosts that have given a valid answer
        self._first: dict[str, asyncio.Lock] = {}  # one connection to each other host

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int
    ) -> Response:
        """Implements Transport.send."""
        why = objection_to(url) or self._limit(urllib.parse.urlsplit(url).netloc)
        if why:
            raise TransportFailed(f"{url} may not be contacted: {why}", sent=False)
        host = urllib.parse.urlsplit(url).netloc
        if host in self._answered:
            return await super().send(method, url, headers, body, limit)
        async with self._first.setdefault(host, asyncio.Lock()):
            response = await super().send(method, url, headers, body, limit)
        if response.status == 200:
            self._answered[host] = None
            self._first.pop(host, None)
        return response

    def _limit(self, host: str) -> str:
        """Counts a host. Returns why it may not be contacted now, or an empty text."""
        now = self._clock()
        self._new = {name: at for name, at in self._new.items() if now - at < HOUR or name in self._answered}
        if host in self._new:
            return ""
        recent = sum(now - at < HOUR for at in self._new.values())
        if recent >= MAX_NEW or len(self._new) >= MAX_HOSTS:
            return f"there were {MAX_NEW} new hosts within an hour; try again later"
        self._new[host] = now
        return ""

    async def _dial(
        self, host: str, port: int, context: ssl.SSLContext | None, name: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the first public address of a host. The address that was checked is the one that is used."""
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(entry[4][0]) for entry in found]
            if not addresses or not all(map(is_public, addresses)):
                raise OSError(f"{host} has an address that is not public")
            return await super()._dial(addresses[0], port, context, host)
