"""Private relays: who gets a token, for which address and time, and when a read is signed (PROTOCOL §8)."""
import asyncio
import contextlib
import unittest

from agora_relay import RelayError, check_read
from agora_relay.session import is_other_loopback, same_origin

from .support import RelayTest, answer, refusal, virtual


class Access(RelayTest):
    def private(self):
        """A relay that checks the tokens of reads."""
        relay = self.setup()
        relay.reads, self.readers, self.refusals = "parties", [], []

        async def hook(method, parts, next):
            if method == "GET" and parts.path != "/health":
                header = relay.requests[-1][2].get("Authorization", "")
                if self.refusals:
                    return self.challenge(**self.refusals.pop(0))
                if not header.startswith("Agora "):
                    return self.challenge(reason="unsigned")
                target = parts.path + ("?" + parts.query if parts.query else "")
                self.readers.append(
                    check_read(header[6:], origin=relay.url, method="GET", target=target, now=int(relay.now() * 1e9))
                )
            return await next()

        relay.hook = hook
        return relay

    def challenge(self, **details):
        response = refusal("UNAUTHORIZED", 401, **details)
        response.headers["www-authenticate"] = ["Agora"]
        return response

    @virtual
    async def test_reads_are_signed(self):
        relay = self.private()
        client = relay.client(self.bob)
        await client.post("MANIFEST", {"id": "m", "intents": []})
        await client.agents(intent="a b&c")
        await client.agent(self.bob.did)
        await client.health()
        with self.assertRaises(RelayError):
            await client.thread("t/../x?y")
        async with contextlib.aclosing(client.follow(from_oldest=True)) as events:
            async for _ in events:
                break
        self.assertEqual(self.readers, [self.bob.did] * 4)
        with self.assertRaises(RelayError) as caught:  # without an identity
            await relay.client().agents()
        self.assertEqual(caught.exception.details["reason"], "unsigned")

    @virtual
    async def test_refused_tokens_are_replaced(self):
        now = {"now": "2026-02-02T12:05:00Z"}
        for refusals, want in [
            ([{"reason": "used"}], None),
            ([{"reason": "time"} | now], None),
            ([{"reason": "audience"}], "UNAUTHORIZED"),
            ([{"reason": "time"} | now] * 2, "NO_ANSWER"),
            ([{"reason": "used"}] * 3, "NO_ANSWER"),
            ([{"reason": "time", "now": "2026-02-02T13:00:00Z"}], "UNAUTHORIZED"),  # too far ahead
            ([{"reason": "time", "now": "2026-02-01T00:00:00Z"}], "UNAUTHORIZED"),
            ([{"reason": "time"}], "UNAUTHORIZED"),
        ]:
            relay = self.private()
            if want is None and "now" in refusals[0]:
                relay.skew = 300
            client = relay.client(self.bob)
            self.refusals[:] = [dict(r) for r in refusals]
            with self.subTest(refusals=refusals):
                if want is None:
                    await client.agents()
                    continue
                with self.assertRaises(RelayError) as caught:
                    await client.agents()
                self.assertEqual(caught.exception.code, want)

    @virtual
    async def test_relay_becomes_private(self):
        relay = self.private()
        relay.reads = "open"
        client = relay.client(self.bob)

        async def become():
            relay.reads = "parties"

        with self.assertRaises(RelayError):  # it says open, but refuses
            await client.agents()
        await become()
        await client.agents()
        self.assertEqual(self.readers, [self.bob.did])

    @virtual
    async def test_signing_continues(self):
        """A relay that was private once gets signed reads from then on, whatever its document says."""
        relay = self.private()
        client = relay.client(self.bob)
        await client.agents()
        relay.reads = "open"
        await asyncio.sleep(1000)
        await client.agents()
        self.assertEqual(len(self.readers), 2)

    @virtual
    async def test_require_parties(self):
        relay = self.setup()
        client = relay.client(self.bob, require_parties=True)
        for call in (lambda: client.agents(), lambda: client.post("REQUEST", {"intent": "x"})):
            with self.assertRaises(RelayError) as caught:
                await call()
            self.assertEqual(caught.exception.code, "UNAUTHORIZED")
        self.assertEqual({path for _, path, _ in relay.requests}, {"/.well-known/agora.json"})
        relay.reads = "parties"
        await client.post("REQUEST", {"intent": "x"})
        relay.reads = "open"
        await asyncio.sleep(301)
        with self.assertRaises(RelayError):
            await client.post("REQUEST", {"intent": "x"})

    @virtual
    async def test_documents(self):
        document = {"ok": True, "url": "http://relay.test", "reads": "parties"}
        for body, status, tokens, code in [
            (document, 200, 1, None),
            (document | {"url": "http://other.test"}, 200, 0, "UNAUTHORIZED"),
            (document | {"url": "http://relay.test:81"}, 200, 0, "UNAUTHORIZED"),
            (document | {"url": "https://relay.test"}, 200, 0, "UNAUTHORIZED"),
            (document | {"url": "http://relay.test/x"}, 200, 0, "UNAUTHORIZED"),
            (document | {"url": 7}, 200, 0, "NO_ANSWER"),
            (document | {"reads": "maybe"}, 200, 0, "UNAUTHORIZED"),
            (document | {"reads": "open"}, 200, 0, None),
            ({"ok": True}, 200, 0, None),
            (
                {"ok": False, "error": "NOT_FOUND"},
                404,
                0,
                None,
            ),  # a relay without a document, which answers the read of an inbox
            ({"ok": False, "error": "FORBIDDEN"}, 403, 0, "NO_ANSWER"),
            ({"ok": False, "error": "X"}, 500, 0, "X"),
            ({}, 200, 0, "NO_ANSWER"),
        ]:
            relay = self.setup()
            send = relay.send

            async def with_document(method, url, headers, content, limit):
                if url.endswith("agora.json"):
                    return answer(status, body)
                return await send(method, url, headers, content, limit)

            relay.send = with_document
            with self.subTest(body=body, status=status):
                try:
                    await relay.client(self.bob).agents()
                    self.assertIsNone(code)
                except RelayError as err:
                    self.assertEqual(err.code, code)
                signed = [r for r in relay.requests if "Authorization" in r[2]]
                self.assertEqual(len(signed), tokens)

    @virtual
    async def test_proxies_may_refuse_tokens(self):
        relay = self.setup()

        async def hook(method, parts, next):
            return refusal("FORBIDDEN", 403) if "Authorization" in relay.requests[-1][2] else await next()

        relay.hook = hook
        client = relay.client(self.bob)
        await client.post("REQUEST", {"intent": "x"})
        async with contextlib.aclosing(client.follow(from_oldest=True)) as events:
            async for event in events:
                self.assertEqual(event.type, "REQUEST")
                break
        self.assertEqual(
            ["Authorization" in r[2] for r in relay.requests if r[1] == "/events" and r[0] == "GET"], [True, False]
        )


class Origins(unittest.TestCase):
    def test_loopback(self):
        for claimed, used, other, same in [
            ("http://127.0.0.1:1", "http://localhost:1/x", True, False),
            ("http://localhost:1", "http://127.0.0.1:1", False, False),
            ("http://[::1]:1", "http://127.0.0.1:1", True, False),
            ("http://127.0.0.1:2", "http://localhost:1", False, False),
            ("https://127.0.0.1:1", "http://localhost:1", False, False),
            ("http://10.0.0.1:1", "http://localhost:1", False, False),
            ("http://127.0.0.1:1", "http://relay.example:1", False, False),
            ("http://a", "http://A:80/path", False, True),
            ("http://127.0.0.1:1", "http://127.0.0.1:1", False, True),
            ("http://u@a", "http://a", False, False),
            ("", "http://a", False, False),
            ("http://a:x", "http://a", False, False),
            ("http://a?", "http://a", False, True),
        ]:
            with self.subTest(claimed=claimed, used=used):
                self.assertEqual((is_other_loopback(claimed, used), same_origin(claimed, used)), (other, same))
