"""Runs this project's test vectors.

    python3 vectors.py FOLDER

Prints "file passed failed" for each file. The failures are printed to standard error.
"""
import base64
import hashlib
import json
import pathlib
import sys

import package  # noqa: F401, it finds agora_relay
from agora_relay import (
    Identity, Refused, canonicalize, check_read, content_hash, covered, instant, key_of, open_payload, parse, place,
    read_envelope, read_token, seal, sign, verify, verify_chain, verify_evidence, verify_proof, x25519_private, x25519_public,
)
from rules import REQUIRED, SECOND, Ledger, check_fresh, check_meant, expiry


class Disagreement(Exception):
    pass


def equal(have, want):
    if have != want:
        raise Disagreement(f"have {have!r}, want {want!r}")


def receive(body, now):
    e = read_envelope(body)
    check_meant(e, "https://relay.example", instant(now))  # the origin of the relay in the vectors
    verify(e)
    return e


# Each function runs one vector. It raises Refused if the implementation refuses the input. Otherwise it returns the
# results, and the results that the vector expects.


def didkey(v):
    key = key_of(v["did"]).hex()
    if "seedHex" in v:
        equal(Identity(bytes.fromhex(v["seedHex"])).did, v["did"])
    return key, v.get("publicKeyHex")


def canonical(v):
    return canonicalize(parse(base64.b64decode(v["input"]))), base64.b64decode(v.get("output", ""))


def signing(v):
    e = parse(base64.b64decode(v["input"]))
    signed = sign(e, Identity(bytes.fromhex(v["seedHex"])))
    text = canonicalize(signed)
    return (
        (covered(e), signed["sig"], text, hashlib.sha256(text).hexdigest()),
        (base64.b64decode(v["signed"]), v["sig"], base64.b64decode(v["envelope"]), v["sha256"]),
    )


def verifying(v):
    e = receive(base64.b64decode(v["body"]), v["now"])
    return (
        (e["id"], e["sender"]["id"], canonicalize(e)),
        (v.get("id"), v.get("sender"), base64.b64decode(v.get("canonical", ""))),
    )


def window(v):
    ts = instant(v["ts"])
    check_fresh(ts, v["ttl"], instant(v["now"]))
    return expiry(ts, v["ttl"]), instant(v.get("expiresAt"))


def threads(v):
    ledger = Ledger()

    def post(number, m, now):
        e = {"id": f"m{number}", "type": m["type"], "sender": {"id": m["by"]}, "thread": {"id": "t"}, "payload": {}}
        if m.get("to"):
            e["recipient"] = {"id": m["to"]}
        if m.get("requestId") != "none":
            e["payload"]["request_id"] = m.get("requestId") or "r"
        if m.get("payload") != "incomplete":
            e["payload"] |= dict.fromkeys(REQUIRED.get(m["type"], []), "x")
        return ledger.take(e, now)

    for number, m in enumerate(v["history"]):
        post(number, m, 0)
    state, _, _ = post("last", v["message"], v.get("elapsed", 0) * SECOND)
    return state, v.get("state_after")


def sealing(v):
    if "envelope" not in v:
        if "seedHex" in v:
            equal(x25519_private(bytes.fromhex(v["seedHex"])).hex(), v["privateHex"])
        return x25519_public(key_of(v["did"])).hex(), v.get("publicHex")
    e = read_envelope(base64.b64decode(v["envelope"]))
    payload = open_payload(e, Identity(bytes.fromhex(v["seedHex"])))
    have, want = (canonicalize(payload), place(e)), (base64.b64decode(v.get("payload", "")), base64.b64decode(v.get("info", "")))
    if v["expect"] == "accept" and len(base64.b64decode(v["plaintext"])) % 256 == 0:
        # If the plaintext has standard padding, sealing the payload again must give the same text.
        equal(seal(e | {"payload": payload}, bytes.fromhex(v["ephemeralHex"]))["payload"], e["payload"])
    return have, want


def conversation(v):
    ledger = Ledger()
    for number, step in enumerate(v["steps"], 1):
        def act():
            state, client, duplicate = ledger.take(receive(base64.b64decode(step["body"]), step["now"]), instant(step["now"]))
            return (
                (state if "state" in step else None, client if "client" in step else None, duplicate),
                (step.get("state"), step.get("client"), step.get("duplicate", False)),
            )
        check(f"step {number}", step, act)
    return None, None


def reading(v):
    did = check_read(v["token"], origin=v["origin"], method=v["method"], target=v["target"], now=instant(v["now"]))
    t = parse(base64.urlsafe_b64decode(v["token"] + "==="))
    again = read_token(t["aud"], t["target"], Identity(bytes.fromhex(v.get("seedHex", ""))), t["ts"], t["nonce"])
    return (
        (did, covered(t), parse(base64.urlsafe_b64decode(again + "==="))["sig"]),
        (v.get("did"), base64.b64decode(v.get("signed", "")), t["sig"]),
    )


def log(v):
    if "evidence" in v:
        found = verify_evidence(base64.b64decode(v["evidence"]))
        return (found.relay, found.kind), (v.get("relay"), v.get("kind"))
    message = parse(base64.b64decode(v["message"])) if "message" in v else None
    p = verify_proof(v.get("proof", ""), message, relay=v.get("relay"), witnesses=v.get("witnesses", ()))
    return (
        (p.index, p.size, (p.leaf or p.start).text, [f"{c.name} {c.at}" for c in p.cosigned]),
        (v.get("index", 0), v.get("size"), v.get("leaf"), v.get("cosigned", [])),
    )


def relays(v):
    if "evidence" in v:
        found = verify_evidence(base64.b64decode(v["evidence"]))
        return (found.client, found.relay, found.kind), (v.get("client"), None, "accepts")
    messages = parse(base64.b64decode(v["chain"]))
    d = verify_chain(messages)
    price = None if d.price is None else {"amount": d.price.amount, "currency": d.price.currency}
    names = "hashes", "client", "agent", "home", "intent", "price", "accepted", "status"
    return (
        ([content_hash(m) for m in messages], d.client, d.agent, d.home, d.intent, price, d.accepted, d.status),
        tuple(v.get(name, False if name == "accepted" else None) for name in names),
    )


def check(name, v, act):
    """Compares the outcome of act with a vector or a step. A conversation has outcomes only for its steps."""
    try:
        have, want = act()
    except Refused as err:
        if v.get("expect") != "reject":
            raise Disagreement(f"{name}: refused with {err}") from None
        if v.get("code", err.code) != err.code:
            raise Disagreement(f"{name}: refused with {err}, not {v['code']}: {v['reason']}") from None
        return
    if v.get("expect") == "reject":
        raise Disagreement(f"{name}: accepted, though: {v['reason']}")
    equal(have, want)


RUN = {
    "didkey.json": didkey, "canonicalize.json": canonical, "sign.json": signing, "verify.json": verifying,
    "window.json": window, "threads.json": threads, "conversations.json": conversation, "reads.json": reading,
    "sealing.json": sealing, "log.json": log, "relays.json": relays,
}

folder = pathlib.Path(sys.argv[1])
names = sorted(path.name for path in folder.glob("*.json") if path.name != "protocol.json")  # it has tables
if names != sorted(RUN):
    sys.exit(f"the vector files are not those known here: {names}")
broken = False
for name in names:
    vectors = json.loads((folder / name).read_bytes())["vectors"]
    failed = 0
    for v in vectors:
        try:
            check(v["name"], v, lambda: RUN[name](v))
        except Disagreement as err:
            failed += 1
            print(f"{name}: {v['name']}: {err}", file=sys.stderr)
    broken = broken or failed > 0 or not vectors
    print(name, len(vectors) - failed, failed)
sys.exit(broken)
