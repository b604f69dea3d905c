"""The option proofs: what a post returns, and when an agent works."""
from agora_relay import AgentError, Client, Identity, NoProof, Refused, UnknownOutcome, format_time, sign, verify_proof

from .support import RelayTest, Response, Serving, lost, proof_of, refusal, virtual


def right(proof, e):
    return proof


def none(proof, e):
    return None


def of_another(proof, e):
    return proof_of(Identity.generate(), e)


def cut(proof, e):
    return proof[:-5]


def odd(proof, e):
    return proof.replace("did:key:z", "did:key:y")


def long(proof, e):
    return "x" * ((64 << 10) + 1)


class ProofTest(RelayTest):
    def setup(self, given=none, shown=none, features=("proofs",)):
        relay = super().setup()
        relay.given, relay.shown, relay.features = given, shown, list(features)
        return relay


class Posts(ProofTest):
    def messages(self, n):
        draft = {"version": "1.0", "ts": format_time(self.relay.wall()), "type": "REQUEST", "meta": {"ttl": 60}}
        draft |= {"sender": {"id": self.alice.did}}
        return [
            sign(draft | {"id": f"m{i}", "thread": {"id": f"t{i}"}, "payload": {"intent": "x"}}, self.alice)
            for i in range(n)
        ]

    @virtual
    async def test_words(self):
        for value in ("on", "", True, None):
            with self.assertRaisesRegex(ValueError, "prefer"):
                Client("http://relay.test", proofs=value)
        self.assertEqual(Client("http://relay.test").proofs, "prefer")

    @virtual
    async def test_a_post(self):
        """want: whether the receipt has a proof, or why there is none."""
        holds = "no proof that holds: INVALID_PROOF"
        for name, given, shown, proofs, want, reads in [
            ("valid", right, none, "prefer", True, 0),
            ("valid", right, none, "required", True, 0),
            ("off", right, right, "off", False, 0),
            ("off, and wrong", cut, cut, "off", False, 0),
            ("wrong, then good", of_another, right, "prefer", True, 1),
            ("wrong, then good", cut, right, "required", True, 1),
            ("wrong both", of_another, cut, "prefer", holds + ": the proof is by another relay", 1),
            ("wrong both", odd, odd, "prefer", "no proof that holds: INVALID_DID", 1),
            ("wrong both", cut, of_another, "required", holds, 1),
            ("wrong, then none", cut, none, "prefer", holds, 1),
            ("none", none, right, "prefer", False, 0),
            ("none, then good", none, right, "required", True, 1),
            ("none at all", none, none, "required", "gave no proof \\(use proofs='prefer', or a relay", 1),
            ("none, then wrong", none, of_another, "required", holds, 1),
            ("none, then too long", none, long, "required", holds, 1),
        ]:
            with self.subTest(name=name, proofs=proofs):
                relay = self.setup(given, shown)
                client = relay.client(self.alice, proofs=proofs)
                if isinstance(want, str):
                    with self.assertRaisesRegex(NoProof, want) as caught:
                        await client.post("REQUEST", {"intent": "x"})
                    err = caught.exception
                    self.assertIsInstance(err, UnknownOutcome)
                    self.assertEqual((err.code, err.envelope), ("UNKNOWN_OUTCOME", relay.events[0][0]))
                    self.assertIsInstance(err.__cause__, Refused)
                else:
                    receipt = await client.post("REQUEST", {"intent": "x"})
                    self.assertEqual(receipt.proof is not None, want)
                    if want:
                        verify_proof(receipt.proof, relay.events[0][0], relay=relay.identity.did)
                self.assertEqual((len(relay.asked), len(relay.events)), (reads, 1))

    @virtual
    async def test_a_relay_that_is_gone(self):
        """After a post, the relay does not say who it is."""
        for proofs in ("prefer", "required"):
            relay = self.setup(right, right)
            send = relay.send

            async def gone(method, url, *rest):
                return refusal("NOT_FOUND", 404) if url.endswith("agora.json") else await send(method, url, *rest)

            relay.send = gone
            posted = relay.client(self.alice, proofs=proofs).post("REQUEST", {"intent": "x"})
            if proofs == "prefer":
                self.assertIsNone((await posted).proof)
            else:
                with self.assertRaises(NoProof):
                    await posted

    @virtual
    async def test_a_duplicate(self):
        for proofs, reads in (("prefer", 0), ("required", 1)):
            relay, answers = self.setup(right, right), [lost()]

            async def hook(method, parts, next):
                response = await next()
                return answers.pop() if answers else response

            relay.hook = hook
            [e] = self.messages(1)
            receipt = await relay.client(self.alice, proofs=proofs).post_envelope(e)
            self.assertEqual((receipt.duplicate, len(relay.asked)), (True, reads))
            self.assertEqual(receipt.proof is not None, reads == 1)

    @virtual
    async def test_reads(self):
        """A limited read is repeated, and is signed at a private relay. Without an answer, the outcome is unknown."""
        relay, answers = self.setup(none, right), [refusal("RATE_LIMITED", 429, retry_after=1)]
        relay.reads = "parties"

        async def hook(method, parts, next):
            return answers.pop() if parts.path == "/proofs" and answers else await next()

        relay.hook = hook
        client = relay.client(self.alice, proofs="required")
        self.assertIsNotNone((await client.post("REQUEST", {"intent": "x"})).proof)
        reads = [headers for _, path, headers in relay.requests if path == "/proofs"]
        self.assertEqual(["Authorization" in headers for headers in reads], [True, True])
        answers.append(lost())
        with self.assertRaisesRegex(NoProof, "no proof that holds: NO_ANSWER") as caught:
            await client.request("x")
        self.assertEqual(caught.exception.call.thread, relay.events[-1][0]["thread"]["id"])

    @virtual
    async def test_post_all(self):
        def wrong_second(wrong):
            return lambda proof, e: wrong(proof, e) if e["id"] == "m1" else proof

        for given, shown, features, proofs, want, reads in [
            (right, none, ["proofs"], "prefer", "yyyy", 0),
            (right, none, ["proofs"], "required", "yyyy", 0),
            (right, right, ["proofs"], "off", "nnnn", 0),
            (right, right, [], "prefer", "nnnn", 0),  # it does not ask for proofs
            (right, right, [], "required", "yyyy", 4),
            (right, none, [], "required", "????", 4),
            (none, right, ["proofs"], "prefer", "nnnn", 0),
            (wrong_second(cut), right, ["proofs"], "prefer", "yyyy", 1),
            (wrong_second(cut), wrong_second(of_another), ["proofs"], "prefer", "y?yy", 1),
            (wrong_second(none), wrong_second(none), ["proofs"], "required", "y?yy", 1),
        ]:
            with self.subTest(proofs=proofs, want=want, features=features):
                relay = self.setup(given, shown, features)
                outcomes = await relay.client(self.alice, proofs=proofs).post_all(self.messages(4))
                marks = ["?" if isinstance(one, NoProof) else "y" if one.proof else "n" for one in outcomes]
                self.assertEqual(("".join(marks), len(relay.asked), len(relay.bulks)), (want, reads, 1))

    @virtual
    async def test_post_all_one_by_one(self):
        relay = self.setup(cut, cut)

        async def hook(method, parts, next):
            return refusal("NOT_FOUND", 404) if parts.path == "/events/bulk" else await next()

        relay.hook = hook
        outcomes = await relay.client(self.alice).post_all(self.messages(2))
        self.assertEqual([type(one) for one in outcomes], [NoProof, NoProof])


class Accepts(ProofTest):
    async def trade(self, proofs, seal=False):
        """Runs an agent with this option, and asks it. Returns its output, or the message of its ERROR."""
        relay, jobs = self.relay, []
        async with Serving(relay.client(self.bob, proofs=proofs), "x", lambda job: jobs.append(job) or 5):
            call = await relay.client(self.alice, proofs="off").request("x", to=self.bob.did, seal=seal)
            await call.accept(await call.best("first", seconds=5))
            try:
                output = (await call.result(seconds=600)).output
            except AgentError as err:
                self.assertEqual((err.code, jobs), ("UNAVAILABLE", []))
                return err.message
        self.assertEqual(len(jobs), 1)
        return output

    @virtual
    async def test_work(self):
        def without_accept(proof, e):
            return None if e["type"] == "ACCEPT" else proof

        def of_request(proof, e):
            return proof_of(self.relay.identity, self.relay.events[0][0])

        def dash(proof, e):
            return proof_of(self.relay.identity, e)

        def other(proof, e):
            return proof_of(self.relay.identity, e, "ab" * 32)

        for name, shown, features, proofs, works, logged in [
            ("valid", right, ["proofs"], "prefer", True, ""),
            ("valid", right, [], "required", True, ""),
            ("off", cut, ["proofs"], "off", True, ""),
            ("no feature", cut, [], "prefer", True, ""),
            ("none", without_accept, ["proofs"], "prefer", True, "gives no proof.*working without one"),
            ("none", without_accept, ["proofs"], "required", False, "the relay gives no proof"),
            ("none, no feature", without_accept, [], "required", False, "the relay gives no proof"),
            ("no REQUEST", dash, ["proofs"], "prefer", True, "to which REQUEST.*working without one"),
            ("no REQUEST", dash, ["proofs"], "required", False, "to which REQUEST"),
            ("another REQUEST", other, ["proofs"], "prefer", False, "another REQUEST"),
            ("another REQUEST", other, ["proofs"], "required", False, "another REQUEST"),
            ("wrong", of_another, ["proofs"], "prefer", False, "does not hold"),
            ("wrong", cut, ["proofs"], "required", False, "does not hold"),
            ("that of another message", of_request, ["proofs"], "prefer", False, "does not hold"),
            ("by no DID", odd, ["proofs"], "prefer", False, "does not hold"),
            ("too long", long, ["proofs"], "prefer", False, "does not hold"),
        ]:
            with self.subTest(name=name, proofs=proofs):
                self.setup(right, shown, features)
                if logged:
                    with self.assertLogs("agora_relay", "WARNING") as lines:
                        output = await self.trade(proofs)
                    self.assertRegex("".join(lines.output), logged)
                    self.assertEqual(len(lines.output), 1)
                else:
                    with self.assertNoLogs("agora_relay", "WARNING"):
                        output = await self.trade(proofs, seal=name == "valid")
                if works:
                    self.assertEqual(output, 5)
                else:
                    self.assertRegex(output, f"^the agent does not begin to work: .*{logged}")

    @virtual
    async def test_reading_fails(self):
        relay, answers = self.setup(right, right), [lost(), refusal("UNAVAILABLE", 503), Response(502, {}, b"")]

        async def hook(method, parts, next):
            return answers.pop() if parts.path == "/proofs" and answers else await next()

        relay.hook = hook
        self.assertEqual(await self.trade("required"), 5)
        self.assertEqual(answers, [])

    @virtual
    async def test_no_document(self):
        relay, send = self.setup(), self.relay.send

        async def without_document(method, url, *rest):
            return refusal("NOT_FOUND", 404) if url.endswith("agora.json") else await send(method, url, *rest)

        relay.send = without_document
        self.assertEqual(await self.trade("prefer"), 5)
