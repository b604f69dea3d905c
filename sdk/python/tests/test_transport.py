"""HTTP over real sockets: what a hostile server may send, reused connections, TLS, cancellation."""
import asyncio
import contextlib
import datetime
import ipaddress
import logging
import pathlib
import socket
import ssl
import tempfile
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agora_relay import BodyTooLong, Client, RelayError, StreamTransport, TransportFailed


class Server:
    """Answers the requests of each connection with the next script, which gets the reader and the writer."""

    def __init__(self, *scripts, host="127.0.0.1", **options):
        self.scripts, self.host, self.options = list(scripts), host, options
        self.connections, self.requests, self.writers = 0, [], []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, self.host, 0, **self.options)
        self.port = self.server.sockets[0].getsockname()[1]
        scheme = "https" if "ssl" in self.options else "http"
        self.url = f"{scheme}://{'[::1]' if ':' in self.host else self.host}:{self.port}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.requests.append((head, body))
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                if isinstance(script, bytes):
                    writer.write(script)
                    await writer.drain()
                else:
                    await script(reader, writer)


def ok(body=b"hello", *headers):
    """A response with a Content-Length."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", body])


async def close(_, writer):
    writer.close()


class Transports(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.transport = StreamTransport()
        self.addAsyncCleanup(self.transport.close)

    async def send(self, url, limit=100, method="GET", body=None, headers={"X-A": "b"}):
        async with asyncio.timeout(10):
            return await self.transport.send(method, url, headers, body, limit)

    async def test_answers(self):
        async def to_the_end(_, writer):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
            await close(_, writer)

        async def slow(_, writer):
            for byte in ok():
                writer.write(bytes([byte]))
                await writer.drain()

        chunked = (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"
        )
        for script in (
            ok(),
            chunked,
            to_the_end,
            slow,
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + ok(),
            ok(b"hello", b"Connection: close"),
            b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        ):
            async with Server(script) as server:
                with self.subTest(script=script):
                    response = await self.send(server.url + "/p/a?q=1#f", method="POST", body=b"{}")
                    self.assertEqual((response.status, response.body), (200, b"hello"))
                    head, body = server.requests[0]
                    self.assertEqual((head.split(b"\r\n")[0], body), (b"POST /p/a?q=1 HTTP/1.1", b"{}"))
                    self.assertIn(b"X-A: b\r\n", head)
        async with Server(b"HTTP/1.1 204 No Content\r\n\r\n") as server:
            self.assertEqual((await self.send(server.url)).body, b"")
        async with Server(b"HTTP/1.1 307 X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n") as server:
            self.assertEqual((await self.send(server.url)).status, 307)  # redirects are not followed
            self.assertEqual(len(server.requests), 1)

    async def test_hostile_answers(self):
        head = b"HTTP/1.1 200 OK\r\n"

        async def endless_header(_, writer):
            writer.write(head + b"A: ")
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()

        async def cut(_, writer):
            writer.write(head + b"Content-Length: 50\r\n\r\nhello")
            writer.close()

        async def cut_chunk(_, writer):
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n50\r\nhello")
            writer.close()

        async def cut_head(_, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-")
            writer.close()

        for script in (
            endless_header,
            cut,
            cut_chunk,
            cut_head,
            close,
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/2 200 OK\r\n\r\n",
            head + b"Content-Length: -1\r\n\r\n",
            head + b"Content-Length: 1, 2\r\n\r\n",
            head + b" a: b\r\n\r\n",
            head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
            head + b"a b: c\r\n\r\n",
            head + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd",
            b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
        ):
            async with Server(script) as server:
                with self.subTest(script=script), self.assertRaises(TransportFailed) as caught:
                    await self.send(server.url)
                self.assertTrue(caught.exception.sent)
        chunks = (
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"40\r\n" + b"x" * 64 + b"\r\n40\r\n" + b"x" * 64 + b"\r\n"
        )
        for script in (
            ok(b"x" * 101),
            head + b"Content-Length: 99999999999\r\n\r\n",
            chunks,
            head + b"\r\n" + b"x" * 200,
        ):
            async with Server(script) as server:
                with self.subTest(script=script), self.assertRaises(BodyTooLong) as caught:
                    await self.send(server.url)
                self.assertEqual(caught.exception.response.status, 200)

    async def test_nothing_is_sent(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            for bad, headers in (
                (url, {}),
                ("http://127.0.0.1:1/a b", {}),
                ("http://nowhere.invalid", {}),
                (url, {"A": "b\r\nC: d"}),
            ):
                with self.subTest(url=bad), self.assertRaises(TransportFailed) as caught:
                    await self.send(bad, headers=headers)
                self.assertFalse(caught.exception.sent)

    async def test_failures_in_words(self):
        """An error says what is wrong and what to change."""

        async def said(url):
            with self.assertRaises(TransportFailed) as caught:
                await self.send(url)
            return str(caught.exception)

        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self.assertIn("is it running?", await said(f"http://127.0.0.1:{unused.getsockname()[1]}"))
        self.assertIn("check the URL", await said("http://nowhere.invalid"))

        async def plain(reader, writer):  # a server without TLS answers the first bytes that it gets
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            self.assertIn("write http://", await said(f"https://127.0.0.1:{port}"))
        async with Server(b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n") as server:
            self.assertIn("write https://", await said(server.url))
        async with Server(close) as server:
            self.assertIn("whether the URL needs https://", await said(server.url))

    async def test_connections_are_reused(self):
        async with Server(ok()) as server:
            for _ in range(5):
                await self.send(server.url)
            self.assertEqual(server.connections, 1)
            await asyncio.gather(*(self.send(server.url) for _ in range(20)))
            self.assertLessEqual(server.connections, 20)
            before = server.connections
            await asyncio.gather(*(self.send(server.url) for _ in range(5)))
            self.assertEqual(server.connections, before)

    async def test_stale_connection(self):
        """The server closes a kept connection when the next request comes. The request is sent again, once."""
        async with Server(ok(), close, ok()) as server:
            await self.send(server.url)
            self.assertEqual((await self.send(server.url, method="POST", body=b"{}")).body, b"hello")
            self.assertEqual((server.connections, len(server.requests)), (2, 3))
        async with Server(ok(), close) as server:
            await self.send(server.url)
            server.server.close()
            with self.assertRaises(TransportFailed) as caught:
                await self.send(server.url)
            self.assertTrue(caught.exception.sent)  # by the first attempt

    async def test_cancelled(self):
        """A cancelled request closes its connection, so that no later request gets its answer."""

        async def wait(reader, writer):
            await asyncio.sleep(0.2)
            writer.write(ok(b"late"))

        async with Server(wait, ok(b"mine")) as server:
            for seconds in (0, 0.001, 0.05):
                server.scripts[:] = [wait, ok(b"mine")]
                with self.assertRaises(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self.send(server.url)
                server.scripts[:] = [ok(b"mine")]
                self.assertEqual((await self.send(server.url)).body, b"mine")
                await asyncio.sleep(0.3)
                self.assertEqual((await self.send(server.url)).body, b"mine")

    async def test_ipv6(self):
        try:
            async with Server(ok(), host="::1") as server:
                self.assertEqual((await self.send(server.url)).body, b"hello")
        except OSError as err:
            if err.errno in (97, 99):  # this machine has no IPv6
                self.skipTest(str(err))
            raise

    async def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            key, cert = pathlib.Path(folder, "key.pem"), pathlib.Path(folder, "cert.pem")
            make_certificate(key, cert)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            async with Server(ok(), ssl=context) as server:
                asyncio_log = logging.getLogger("asyncio")  # the server logs the handshake that fails
                self.addCleanup(asyncio_log.setLevel, asyncio_log.level)
                asyncio_log.setLevel(logging.CRITICAL)
                with self.assertRaises(TransportFailed) as caught:  # nobody has signed this certificate
                    await self.send(server.url)
                self.assertFalse(caught.exception.sent)
                self.assertIn("certificate", str(caught.exception))
                trusting = StreamTransport(ssl.create_default_context(cafile=str(cert)))
                for _ in range(3):
                    self.assertEqual((await trusting.send("GET", server.url, {}, None, 100)).body, b"hello")
                self.assertEqual(server.connections, 1)
                await trusting.close()

    async def test_client_over_sockets(self):
        for script, code in [
            (ok(b'{"ok":true,"version":"1.0.0"}'), None),
            (ok(b"<html>"), "INVALID_ANSWER"),
            (ok(b"{}" * 40_000), "INVALID_ANSWER"),
            (close, "NO_ANSWER"),
            (ok(b"{}", b"Content-Encoding: gzip"), "INVALID_ANSWER"),
        ]:
            async with Server(script) as server, Client(server.url) as client:
                if code is None:
                    self.assertEqual(await client.health(), "1.0.0")
                    continue
                with self.assertRaises(RelayError) as caught:
                    await client.health()
                self.assertEqual(caught.exception.code, code)


def make_certificate(key, cert):
    """Makes a certificate for 127.0.0.1 that signs itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    cert.write_bytes(built.public_bytes(serialization.Encoding.PEM))
