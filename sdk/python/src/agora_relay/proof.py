"""Proofs and evidence of transparency logs (LOG). Everything here is checked offline."""
from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from .chain import check_accepts
from .didkey import did_of, key_of
from .envelope import check_envelope, decode64, instant, verifies, verify
from .errors import Refused
from .jsontext import parse
from .links import content_hash

_HEADER, _MARK = "c2sp.org/tlog-proof@v1", "— "
_NOTE, _COSIGNATURE = b"\x01", b"\x04"  # types of signatures
_MAX_PROOF, _MAX_EVIDENCE, _MAX_PATH, _MAX_SIGNATURES, _MAX_NUMBER = 64 << 10, 1 << 20, 63, 100, 2**63 - 1
_MAX_SIZE = 2**53 - 1  # of a log
_MINUTE = 60 * 10**9
_MAX_SKEW = 5 * _MINUTE  # between the ts of a message and its arrival
_MAX_DATING = 20 * _MINUTE  # how much earlier than a leaf before it a leaf may be
_LEAF = re.compile(
    r"agora-leaf/1\nsalt ([A-Za-z0-9_-]{22})\nevent ([0-9a-f]{64})\nreceived (.{24})\nrequest (-|[0-9a-f]{64})\n")
_START = re.compile(r"agora-log/1\nbegan (.{24})\nprevious (.*)\n")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def _must(ok: object, message: str) -> None:
    if not ok:
        raise Refused("INVALID_PROOF", message)


@dataclass(frozen=True)
class Leaf:
    """What a log says about a message. request is the hash of the REQUEST that opened the thread. Hashes are in hex."""

    text: str
    salt: str
    event: str
    received: str
    request: Optional[str]


@dataclass(frozen=True)
class Previous:
    """The log before another one."""

    origin: str
    size: int
    root: bytes


@dataclass(frozen=True)
class Start:
    """Leaf 0 of a log: when it began, and the log before it."""

    text: str
    began: str
    previous: Optional[Previous]


@dataclass(frozen=True)
class Cosigned:
    """A witness who has signed the checkpoint of a proof, and when, in seconds since 1970."""

    name: str
    at: int


@dataclass(frozen=True)
class VerifiedProof:
    """What a valid proof says about the log of a relay. leaf is None if index is 0; else start is None."""

    relay: str
    epoch: str
    index: int
    size: int
    leaf: Optional[Leaf]
    start: Optional[Start]
    cosigned: tuple[Cosigned, ...]
    hash: bytes

    @property
    def origin(self) -> str:
        """The name of the log."""
        return f"{self.relay}/{self.epoch}"


@dataclass(frozen=True)
class Finding:
    """What evidence shows: against which relay or client it is, and its kind."""

    relay: Optional[str]
    """None: it is against client."""
    kind: str
    client: Optional[str] = None


def verify_proof(
    text: str,
    message: Optional[Mapping[str, Any]] = None,
    *,
    relay: Optional[str] = None,
    witnesses: Iterable[str] = (),
) -> VerifiedProof:
    """Checks the proof text: that a leaf is in the log of a relay, that the relay has signed this, and that signatures
    by the witnesses, if there are any, are valid. With message, the proof must be for this message, and by this relay.
    The caller must verify the message first. witnesses are verifier keys. Raises Refused with INVALID_PROOF."""
    p = _read_proof(text)
    c = p.checkpoint
    cosigned = _check_signatures(c, [_read_witness(key) for key in witnesses])
    leaf_hash = hashlib.sha256(b"\x00" + p.extra).digest()
    _must(p.index < c.size, "the log has no leaf with this index")
    _must(_leads(leaf_hash, p.index, c, p.path), "the path does not lead from the leaf to the root")
    leaf, start = (None, _read_start(_text(p.extra))) if p.index == 0 else (_read_leaf(_text(p.extra)), None)
    found = VerifiedProof(c.did, c.epoch, p.index, c.size, leaf, start, tuple(cosigned), leaf_hash)
    if message is not None:
        _check_message(found, message, relay)
    return found


def _check_message(found: VerifiedProof, message: Mapping[str, Any], relay: Optional[str]) -> None:
    _must(found.relay == relay, "the proof is by another relay")
    if found.leaf is None:
        raise Refused("INVALID_PROOF", "the proof is that of the start of the log, not of a message")
    _must(found.leaf.event == content_hash(message), "the proof is that of another message")
    late = instant(found.leaf.received) - instant(message["ts"])
    _must(abs(late) <= _MAX_SKEW, "the proof has another time than the message")


# Texts


class _Lines:
    def __init__(self, text: str):
        self.rest = text

    def next(self) -> str:
        line, found, rest = self.rest.partition("\n")
        self.rest = rest
        return line if found else ""

    def after(self, beginning: str) -> str:
        line = self.next()
        return line[len(beginning):] if line.startswith(beginning) else ""


@dataclass(frozen=True)
class _Signature:
    name: str
    hash: bytes
    sig: bytes


@dataclass(frozen=True)
class _Checkpoint:
    origin: str
    did: str
    epoch: str
    size: int
    root: bytes
    body: str
    signatures: Sequence[_Signature]


@dataclass(frozen=True)
class _Proof:
    extra: bytes
    index: int
    path: Sequence[bytes]
    checkpoint: _Checkpoint


@dataclass(frozen=True)
class _Witness:
    name: str
    hash: bytes
    did: str


def _bytes(text: str) -> bytes:
    """The bytes of standard base64 with padding, in its one spelling; not empty."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raw = b""
    _must(raw and base64.b64encode(raw).decode() == text, "a text is not base64 with padding")
    return raw


def _hash(text: str) -> bytes:
    raw = _bytes(text)
    _must(len(raw) == 32, "a hash does not have 32 bytes")
    return raw


def _number(text: str) -> int:
    _must(re.fullmatch("0|[1-9][0-9]{0,18}", text) and int(text) <= _MAX_NUMBER, "a text is not a number")
    return int(text)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _time(text: str) -> int:
    _must(_TIME.fullmatch(text), "a time has not the form with milliseconds and Z")
    return instant(text)


def _check_size(text: object, most: int) -> None:
    try:
        _must(isinstance(text, str) and len(text.encode()) <= most, "the text is too large")
    except UnicodeEncodeError:
        _must(False, "the text has half a character")


def _read_proof(text: str) -> _Proof:
    _check_size(text, _MAX_PROOF)
    lines = _Lines(text)
    _must(lines.next() == _HEADER, "the first line of a proof names its format")
    extra, index, path = _bytes(lines.after("extra ")), _number(lines.after("index ")), []
    while line := lines.next():
        path.append(_hash(line))
        _must(len(path) <= _MAX_PATH, "the path is too long")
    return _Proof(extra, index, path, _read_checkpoint(lines.rest))


def _read_origin(text: str) -> tuple[str, str]:
    found = re.fullmatch("([^/]*)/([0-9a-f]{8})", text)
    if not found:
        raise Refused("INVALID_PROOF", "the origin of a log is DID/EPOCH")
    key_of(found[1])
    return found[1], found[2]


def _read_checkpoint(text: str) -> _Checkpoint:
    _check_size(text, _MAX_PROOF)
    lines = _Lines(text)
    origin = lines.next()
    did, epoch = _read_origin(origin)
    size, root = _number(lines.next()), _hash(lines.next())
    _must(0 < size <= _MAX_SIZE, "a log has from 1 to 2^53 - 1 leaves")
    body = text[: len(text) - len(lines.rest)]
    _must(lines.rest.startswith("\n"), "an empty line must follow the root of a checkpoint")
    lines.next()
    signatures: list[_Signature] = []
    while lines.rest:
        name, _, encoded = lines.after(_MARK).partition(" ")
        bad = any(c.isspace() or c == "+" or unicodedata.category(c) == "Cc" for c in name)
        _must(name and not bad, "a line of the checkpoint is not a signature")
        raw = _bytes(encoded)
        _must(len(raw) > 4, "a signature of the checkpoint has no bytes")
        signatures.append(_Signature(name, raw[:4], raw[4:]))
        _must(len(signatures) <= _MAX_SIGNATURES, "the checkpoint has too many signatures")
    _must(signatures, "the checkpoint has no signature")
    return _Checkpoint(origin, did, epoch, size, root, body, signatures)


def _key_hash(name: str, kind: bytes, key: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + kind + key).digest()[:4]


def _read_witness(text: str) -> _Witness:
    """Reads a verifier key of a witness: NAME+HASH+KEY (C2SP tlog-cosignature)."""
    found = re.fullmatch(r"([^+]+)\+([0-9a-f]{8})\+(.*)", text)
    if not found:
        raise Refused("INVALID_PROOF", "the key of a witness has the form NAME+HASH+KEY")
    raw = _bytes(found[3])
    _must(len(raw) == 33 and raw[:1] == _COSIGNATURE, "the key of a witness has the type 4")
    key_hash = _key_hash(found[1], _COSIGNATURE, raw[1:])
    _must(key_hash.hex() == found[2], "the hash in the key of a witness is wrong")
    return _Witness(found[1], key_hash, did_of(raw[1:]))


def _check_signatures(c: _Checkpoint, witnesses: Sequence[_Witness]) -> list[Cosigned]:
    """Every signature by the relay and by one of the witnesses must be valid. Returns the witnesses that have
    signed."""
    known, signed, cosigned = _key_hash(c.origin, _NOTE, key_of(c.did)), False, []
    for s in c.signatures:
        if (s.name, s.hash) == (c.origin, known):
            _must(verifies(s.sig, c.body.encode(), c.did), "the signature of the relay is wrong")
            signed = True
        for w in witnesses:
            if (s.name, s.hash) == (w.name, w.hash):
                at = int.from_bytes(s.sig[:8], "big")
                message = f"cosignature/v1\ntime {at}\n{c.body}".encode()
                ok = len(s.sig) == 72 and at <= _MAX_NUMBER and verifies(s.sig[8:], message, w.did)
                _must(ok, "the signature of a witness is wrong")
                cosigned.append(Cosigned(s.name, at))
    _must(signed, "the relay has not signed the checkpoint")
    return cosigned


def _read_leaf(text: str) -> Leaf:
    found = _LEAF.fullmatch(text)
    if not found or len(decode64(found[1]) or b"") != 16 or found[4] == "0" * 64:
        raise Refused("INVALID_PROOF", "the leaf has not the form of agora-leaf/1")
    _time(found[3])
    return Leaf(text, found[1], found[2], found[3], None if found[4] == "-" else found[4])


def _read_start(text: str) -> Start:
    found = _START.fullmatch(text)
    if not found:
        raise Refused("INVALID_PROOF", "the leaf has not the form of agora-log/1")
    _time(found[1])
    if found[2] == "-":
        return Start(text, found[1], None)
    parts = found[2].split(" ")
    _must(len(parts) == 3, "the leaf has not the form of agora-log/1")
    _read_origin(parts[0])
    previous = Previous(parts[0], _number(parts[1]), _hash(parts[2]))
    _must(previous.size > 0, "the log before has at least one leaf")
    return Start(text, found[1], previous)


# Trees (RFC 9162 §2.1.3.2 and §2.1.4.2)


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _leads(leaf: bytes, index: int, c: _Checkpoint, path: Sequence[bytes]) -> bool:
    r, fn, sn = leaf, index, c.size - 1
    for p in path:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            r = _node(p, r)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = _node(r, p)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and r == c.root


def _continues(c: _Checkpoint, first: int, first_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether the tree of c continues the tree with this root, which is smaller."""
    if not path:
        return False
    nodes = list(path) if first & (first - 1) else [first_root, *path]
    fn, sn = first - 1, c.size - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = nodes[0]
    for node in nodes[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = _node(node, fr), _node(node, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = _node(sr, node)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and fr == first_root and sr == c.root


# Evidence (LOG §6, RELAYS R-9)

_MEMBERS = {
    "fork": ("checkpoints", "consistency", "root"), "index": ("proofs",), "twice": ("proofs",),
    "steps": ("proofs", "events"), "time": ("proofs",), "chain": ("proofs",), "accepts": ("events",),
}


def verify_evidence(evidence: bytes) -> Finding:
    """Checks evidence against a relay, or against a client that has accepted two agents for one job. Raises Refused with INVALID_PROOF if it shows nothing."""
    _must(len(evidence) <= _MAX_EVIDENCE, "the evidence is too large")
    e = parse(evidence)
    kind = e.get("kind") if isinstance(e, dict) else None
    if not isinstance(kind, str) or kind not in _MEMBERS or e.get("typ") != "agora-evidence/1":
        raise Refused("INVALID_PROOF", "the text is no evidence of a known kind")
    members = _MEMBERS[kind]
    _must(e.keys() <= {"typ", "kind", *members}, "evidence has other members")
    if kind == "accepts":
        events = e.get("events")
        if not isinstance(events, list) or len(events) != 6:
            raise Refused("INVALID_PROOF", "evidence of accepts has six events")
        return Finding(None, kind, check_accepts(events))
    both = e.get(members[0])
    is_pair = isinstance(both, list) and len(both) == 2 and all(isinstance(text, str) for text in both)
    _must(is_pair, "evidence has two proofs, or two checkpoints")
    if kind == "fork":
        return _fork(e)
    a, b = (verify_proof(text) for text in e["proofs"])
    _must(a.relay == b.relay, "the proofs are by two relays")
    _must(_CONTRADICTS[kind](a, b, e), "the proofs do not contradict each other")
    return Finding(a.relay, kind)


def _fork(e: Mapping[str, Any]) -> Finding:
    a, b = sorted((_read_checkpoint(text) for text in e["checkpoints"]), key=lambda c: c.size)
    for c in (a, b):
        _check_signatures(c, ())
    _must(a.origin == b.origin, "the checkpoints are of two logs")
    root = b.root
    if a.size == b.size:
        _must("root" not in e and "consistency" not in e, "checkpoints of one size have no root")
    else:
        lines = e.get("consistency")
        is_text = isinstance(e.get("root"), str) and isinstance(lines, list) and all(isinstance(x, str) for x in lines)
        _must(is_text, "checkpoints of two sizes need root and consistency")
        root = _hash(e["root"])
        _must(_continues(b, a.size, root, [_hash(x) for x in e["consistency"]]), "the consistency proof is wrong")
    _must(a.root != root, "the checkpoints agree")
    return Finding(a.did, "fork")


def _ordered(a: VerifiedProof, b: VerifiedProof) -> Optional[tuple[Leaf, Leaf]]:
    """Two leaves of messages in one log, in their order; None: they are not."""
    if a.leaf is None or b.leaf is None or a.origin != b.origin or a.index == b.index:
        return None
    return (a.leaf, b.leaf) if a.index < b.index else (b.leaf, a.leaf)


def _index(a: VerifiedProof, b: VerifiedProof, _: object) -> bool:
    return (a.origin, a.index) == (b.origin, b.index) and a.hash != b.hash


def _twice(a: VerifiedProof, b: VerifiedProof, _: object) -> bool:
    found = _ordered(a, b)
    return found is not None and found[0].event == found[1].event


def _dating(a: VerifiedProof, b: VerifiedProof, _: object) -> bool:
    found = _ordered(a, b)
    return found is not None and _time(found[0].received) - _time(found[1].received) > _MAX_DATING


def _chain(a: VerifiedProof, b: VerifiedProof, _: object) -> bool:
    def continued(start: Optional[Start], log: VerifiedProof) -> bool:
        p = start.previous if start else None
        return p is not None and p.origin == log.origin and log.index >= p.size

    if a.origin == b.origin:
        return False
    starts = a.start is not None and b.start is not None and a.start.previous == b.start.previous
    return starts or continued(a.start, b) or continued(b.start, a)


def _steps(a: VerifiedProof, b: VerifiedProof, e: Mapping[str, Any]) -> bool:
    events = e.get("events")
    if a.leaf is None or b.leaf is None or a.leaf.request is None or a.leaf.request != b.leaf.request:
        raise Refused("INVALID_PROOF", "the proofs are not of messages that answer one REQUEST")
    if not isinstance(events, list) or len(events) != 2:
        raise Refused("INVALID_PROOF", "evidence of steps has two events")
    by_leaf = {}
    for leaf, event in zip((a.leaf, b.leaf), events):
        verify(check_envelope(event, max_bytes=_MAX_EVIDENCE))
        _must(leaf.event == content_hash(event), "an event is not that of its proof")
        by_leaf[leaf] = event
    found = _ordered(a, b)
    if found:
        return _cannot_follow(by_leaf[found[0]], by_leaf[found[1]])
    kinds = {event["type"] for event in events}
    return a.origin != b.origin and kinds in ({"ACCEPT"}, {"RESULT"}) and a.leaf.event != b.leaf.event


def _cannot_follow(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether no relay that follows the protocol accepts second after first in one thread."""
    if first["type"] == "CANCEL":
        return True
    if first["type"] == "RESULT":
        return second["type"] in ("OFFER", "ACCEPT", "RESULT", "CANCEL")
    if first["type"] != "ACCEPT":
        return False
    other = "recipient" in first and second["sender"]["id"] != first["recipient"]["id"]
    return second["type"] in ("OFFER", "ACCEPT") or (second["type"] == "RESULT" and other)


_CONTRADICTS: Mapping[str, Callable[[VerifiedProof, VerifiedProof, Mapping[str, Any]], bool]] = {
    "index": _index, "twice": _twice, "steps": _steps, "time": _dating, "chain": _chain,
}
