"""Which of the relays that a stranger has named may be contacted (RELAYS R-13)."""
import asyncio
import ipaddress
import socket
import ssl
import unittest
from unittest import mock

from agora_relay import Identity, Network, Response, TransportFailed, dialler
from agora_relay.dialler import Dialler, is_public, objection_to
from agora_relay.transport import StreamTransport

from .support import virtual
from .test_network import NetworkTest, Serving

EXCLUDED = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16 3fff::/20"
).split()


class Addresses(unittest.TestCase):
    def test_both_ends_of_each_network(self):
        for text in EXCLUDED:
            net = ipaddress.ip_network(text)
            with self.subTest(net=text):
                for ip in (net[0], net[-1]):
                    self.assertFalse(is_public(str(ip)), ip)
                    if ip.version == 4:
                        self.assertFalse(is_public(f"::ffff:{ip}"), ip)
        for text in ("8.8.8.8", "11.0.0.0", "100.128.0.0", "172.32.0.0", "2606:4700::1111", "2003::", "::ffff:8.8.8.8"):
            self.assertTrue(is_public(text), text)
        for text in ("fe80::1%lo", "64:ff9b::7f00:1", "::1", "localhost", ""):
            self.assertFalse(is_public(text), text)

    def test_own_addresses(self):
        """The addresses of this machine's interfaces, also public ones."""
        with mock.patch.object(dialler, "_EXCLUDED", []):
            self.assertFalse(is_public("127.0.0.1"))
            self.assertTrue(is_public("8.8.8.8"))

    def test_urls(self):
        for good in ("https://a.example", "https://a.example:443", "https://a.example:1024", "https://8.8.8.8"):
            self.assertEqual(objection_to(good), "")
        for bad in (
            "http://a.example", "ftp://a.example", "a.example", "https://a.example:80", "https://a.example:1023",
            "https://a.example:x", "https://localhost", "https://a.localhost", "https://a.local", "https://a.internal.",
            "https://127.0.0.1", "https://[::1]", "https://[::ffff:10.0.0.1]", "https://2130706433", "https://",
            "https://10.1:8443",
        ):
            self.assertNotEqual(objection_to(bad), "", bad)


class Dialling(unittest.TestCase):
    def setUp(self):
        self.now, self.dialled = 0.0, []
        self.dialler = Dialler(ssl.create_default_context(), clock=lambda: self.now)

        async def dial(transport, host, port, context, name=None):
            self.dialled.append((host, name))
            raise OSError("a test")

        patch = mock.patch.object(StreamTransport, "_dial", dial)
        patch.start()
        self.addCleanup(patch.stop)

    async def send(self, url="https://a.example", addresses=("8.8.8.8",)):
        async def resolve(*_, **__):
            found = [addresses] if isinstance(addresses, str) else addresses
            return [(socket.AF_INET, 1, 6, "", (address, 443)) for address in found]

        with mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", resolve):
            return await self.dialler.send("GET", url, {}, None, 100)

    @virtual
    async def test_it_checks_when_it_dials(self):
        """The address that is checked is the one that is used, so a name that changes does not help."""
        with self.assertRaises(TransportFailed):
            await self.send()
        self.assertEqual(self.dialled, [("8.8.8.8", "a.example")])
        for addresses in (["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], []):
            with self.assertRaisesRegex(TransportFailed, "not public"):
                await self.send(addresses=addresses)
        for url in ("http://a.example", "https://127.0.0.1", "https://a.example:22"):
            with self.assertRaisesRegex(TransportFailed, "may not be contacted"):
                await self.send(url)
        self.assertEqual(len(self.dialled), 1)

    @virtual
    async def test_sixteen_new_hosts_an_hour(self):
        for n in range(18):
            with self.assertRaises(TransportFailed) as caught:
                await self.send(f"https://h{n}.example")
            self.assertEqual("may not be contacted" in str(caught.exception), n >= 16)
        with self.assertRaisesRegex(TransportFailed, "no connection"):
            await self.send("https://h3.example")  # it is not new
        self.now = 3600.0
        with self.assertRaisesRegex(TransportFailed, "no connection"):
            await self.send("https://h17.example")

    @virtual
    async def test_one_connection_until_the_first_valid_answer(self):
        running, most, status = 0, 0, 500

        async def send(*_):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return Response(status, {}, b"")

        with mock.patch.object(StreamTransport, "send", send):
            await asyncio.gather(*(self.send() for _ in range(3)))
            self.assertEqual(most, 1)
            status = 200
            await self.send()
            await asyncio.gather(*(self.send() for _ in range(3)))
            self.assertEqual(most, 3)


class Discovery(NetworkTest):
    @virtual
    async def test_discover(self):
        """A client contacts the relays it was given; with discover also those in verified manifests and homes."""
        self.setup("abd")
        manifest = [{"did": self.relays["d"].identity.did, "url": "https://d.example"}]
        await self.relays["a"].client(self.bob).post("MANIFEST", {"relays": manifest})
        for discover in (False, True):
            async with self.client(names="ab", discover=discover) as network:
                network._dialler = self.net
                urls = [client.url for client in await network.homes(self.bob.did)]
                self.assertEqual(urls, ["https://d.example"] if discover else [])
        async with self.client(names="ab", discover=True) as network:
            for url in ("http://d.example", "https://10.0.0.1", "https://localhost"):
                self.assertIsNone(network._client_of({"did": self.bob.did, "url": url}))
        self.assertIsInstance(Network(["https://a.example"], Identity.generate(), discover=True)._dialler, Dialler)

    @virtual
    async def test_an_agent_discovers_a_home(self):
        self.setup("ad")
        network = self.net.network(self.bob, "a", discover=True)
        network._dialler = self.net
        async with Serving(network, self.work), self.client(names="d") as client:
            call = await client.request("x", 7)
            self.relays["a"].add(self.stored("d", "REQUEST")[0])  # a mirror
            await call.accept(await call.best("first", seconds=60))
            self.assertEqual((await call.result(seconds=60)).output, "done")
            await call.close()
