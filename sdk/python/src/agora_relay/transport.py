"""HTTP/1.1 over asyncio streams, with TLS, bounds on every part of an answer, and reused connections.

It follows no redirects, uses no proxies and no cookies, and asks for no compression. A client may use another
transport: anything with the methods of Transport.
"""
from __future__ import annotations

import asyncio
import dataclasses
import errno
import re
import socket
import ssl
import urllib.parse
from typing import Mapping, Protocol

MAX_HEADERS = 64 * 1024  # bytes of the status line and the headers
MAX_IDLE = 8  # connections that are kept for each origin
IDLE_SECONDS = 30.0  # how long an unused connection is kept; relays close theirs later


@dataclasses.dataclass
class Response:
    """An HTTP answer. The names of headers are in lower case; several headers with one name are in one list."""

    status: int
    headers: Mapping[str, list[str]]
    body: bytes

    def header(self, name: str) -> str:
        """The first header with this name, or an empty text."""
        return next(iter(self.headers.get(name, [])), "")


class TransportFailed(Exception):
    """There is no complete answer. sent is False if the request was certainly not sent."""

    def __init__(self, message: str, *, sent: bool):
        super().__init__(message)
        self.sent = sent


class BodyTooLong(Exception):
    """The body of the answer is longer than allowed. status and headers are the answer's."""

    def __init__(self, response: Response):
        super().__init__("the response is too long")
        self.response = response


class Transport(Protocol):
    """Sends requests. Several requests may be under way at once, and each may be cancelled."""

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int
    ) -> Response:
        """Sends one request and reads the whole answer, whose body has at most limit bytes. It follows no redirects.
        The caller limits the time. Raises TransportFailed and BodyTooLong."""

    async def close(self) -> None:
        """Closes all connections."""


@dataclasses.dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0
    used: bool = False

    def usable(self, now: float) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing() or now - self.idle_since > IDLE_SECONDS)

    def drop(self) -> None:
        self.writer.transport.abort()


class StreamTransport:
    """The standard transport. ssl_context is for https; None: the machine's certificate authorities."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None):
        self._ssl = ssl_context
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int
    ) -> Response:
        """Implements Transport.send."""
        parts = urllib.parse.urlsplit(url)
        origin = parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        request = _request(method, parts, headers, body)
        connection, maybe_sent = self._take(origin), False
        if connection:
            try:
                return await self._exchange(connection, origin, request, limit)
            except _Stale:  # the relay has closed the connection meanwhile; all requests to a relay may be repeated
                maybe_sent = True
        try:
            connection = await self._connect(origin)
        except (OSError, ssl.SSLError) as err:
            raise TransportFailed(f"no connection to {parts.netloc}: {_words(err)}", sent=maybe_sent) from err
        try:
            return await self._exchange(connection, origin, request, limit)
        except _Stale as err:
            other = "http" if parts.scheme == "https" else "https"
            raise TransportFailed(
                "the connection was closed before the answer; if it always is, check whether the URL needs "
                f"{other}://",
                sent=True,
            ) from err

    async def close(self) -> None:
        """Implements Transport.close."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.drop()
        await asyncio.sleep(0)  # the loop closes them in its next round

    def _take(self, origin: tuple[str, str, int]) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        connections = self._idle.get(origin, [])
        while connections:
            connection = connections.pop()
            if connection.usable(now):
                return connection
            connection.drop()
        return None

    def _keep(self, origin: tuple[str, str, int], connection: _Connection) -> None:
        connections = self._idle.setdefault(origin, [])
        connection.idle_since, connection.used = asyncio.get_running_loop().time(), True
        connections.append(connection)
        if len(connections) > MAX_IDLE:
            connections.pop(0).drop()

    async def _connect(self, origin: tuple[str, str, int]) -> _Connection:
        scheme, host, port = origin
        context = None
        if scheme == "https":
            if self._ssl is None:
                self._ssl = ssl.create_default_context()
            context = self._ssl
        return _Connection(*await self._dial(host, port, context))

    async def _dial(
        self, host: str, port: int, context: ssl.SSLContext | None, name: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a host. name is the one in its certificate, if it is not host."""
        return await asyncio.open_connection(
            host, port, ssl=context, limit=MAX_HEADERS, happy_eyeballs_delay=0.25, server_hostname=name
        )

    async def _exchange(
        self, connection: _Connection, origin: tuple[str, str, int], request: bytes, limit: int
    ) -> Response:
        reusable = False
        try:
            connection.writer.write(request)
            response, reusable = await _read(connection.reader, limit)
            return response
        except asyncio.IncompleteReadError as err:
            if not err.partial:
                raise _Stale from err
            raise TransportFailed("the connection was closed in the middle of the answer", sent=True) from err
        except asyncio.LimitOverrunError as err:
            raise TransportFailed("the headers of the answer are too long", sent=True) from err
        except ConnectionError as err:
            raise _Stale from err
        except _NotHTTP as err:
            raise TransportFailed(
                "what answers there does not speak http; if the relay has TLS, write https://", sent=True
            ) from err
        except (OSError, ValueError) as err:
            raise TransportFailed(f"the answer cannot be read: {err}", sent=True) from err
        finally:
            if reusable:
                self._keep(origin, connection)
            else:  # also if this task was cancelled: the rest of the answer is not wanted
                connection.drop()


class _NotHTTP(ValueError):
    """The answer does not begin as one of HTTP/1.1."""


def _words(err: Exception) -> str:
    """What an error of a connection means."""
    if isinstance(err, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here ({err.verify_message})"
    if isinstance(err, ssl.SSLError):
        if err.reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"):
            return "what answers there does not speak https; if this is a relay without TLS, write http://"
        return f"TLS has failed ({err})"
    if isinstance(err, ConnectionRefusedError):
        return "no relay answers there; is it running?"
    if isinstance(err, socket.gaierror):
        return "the name of the host has no address; check the URL, and this machine's network"
    if isinstance(err, TimeoutError):
        return "it does not answer in time; check the URL, and whether a firewall is between"
    if isinstance(err, OSError) and err.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "there is no way to this host; check the network"
    if "Multiple exceptions" in str(err) and "Connect call failed" in str(err):  # one for each address of the host
        return "no relay answers there; is it running?"
    return str(err)


class _Stale(Exception):
    """The connection ended before the first byte of the answer."""


def _request(method: str, parts: urllib.parse.SplitResult, headers: Mapping[str, str], body: bytes | None) -> bytes:
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any(re.search(r"[\0\r\n]", line) for line in lines) or " " in target:
        raise TransportFailed("the request has characters that HTTP does not allow", sent=False)
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b"")


async def _read(reader: asyncio.StreamReader, limit: int) -> tuple[Response, bool]:
    """Reads an answer. Returns it and whether the connection can be used again. Errors after the head never are
    IncompleteReadError without a part, so that the request is not taken for unanswered."""
    for _ in range(8):  # informational answers come before the answer
        head = await reader.readuntil(b"\r\n\r\n")
        version, status, headers = _parse_head(head)
        if status >= 200:
            break
    else:
        raise ValueError("there are too many informational answers")
    response = Response(status, headers, b"")
    encodings = [value.strip().lower() for line in headers.get("transfer-encoding", []) for value in line.split(",")]
    lengths = {value.strip() for line in headers.get("content-length", []) for value in line.split(",")}
    closes = version == "HTTP/1.0" or "close" in response.header("connection").lower()
    try:
        if status in (204, 304):
            return response, not closes
        if encodings:
            if encodings != ["chunked"]:
                raise ValueError("the answer has a Transfer-Encoding other than chunked")
            response.body = await _read_chunks(reader, limit)
            return response, not (closes or lengths)
        if lengths:
            text = lengths.pop()
            if lengths or not re.fullmatch("[0-9]{1,15}", text):
                raise ValueError("the answer has no valid Content-Length")
            if int(text) > limit:
                raise BodyTooLong(response)
            response.body = await reader.readexactly(int(text))
            return response, not closes
        response.body = await _read_to_end(reader, limit)
        return response, False
    except _TooLong:
        raise BodyTooLong(response) from None
    except asyncio.IncompleteReadError as err:
        raise ValueError("the connection was closed in the middle of the answer") from err
    except ConnectionError as err:
        raise ValueError(f"the connection broke in the middle of the answer: {err}") from err


class _TooLong(Exception):
    pass


def _parse_head(head: bytes) -> tuple[str, int, dict[str, list[str]]]:
    lines = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"(HTTP/1\.[01]) ([1-5][0-9][0-9])(?: .*)?", lines[0])
    if not match:
        raise _NotHTTP("the answer is not HTTP/1.1")
    headers: dict[str, list[str]] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError("a header of the answer is malformed")
        headers.setdefault(name.lower(), []).append(value.strip())
    return match[1], int(match[2]), headers


async def _read_chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    overhead = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        overhead += len(line)
        size_text = line.split(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size_text) or overhead > MAX_HEADERS + limit:
            raise ValueError("a chunk of the answer is malformed")
        size = int(size_text, 16)
        if size == 0:
            break
        if len(body) + size > limit:
            raise _TooLong
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk of the answer is malformed")
    trailers = 0
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        trailers += len(line)
        if trailers > MAX_HEADERS:
            raise ValueError("the trailers of the answer are too long")
    return bytes(body)


async def _read_to_end(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while part := await reader.read(64 * 1024):
        body += part
        if len(body) > limit:
            raise _TooLong
    return bytes(body)
