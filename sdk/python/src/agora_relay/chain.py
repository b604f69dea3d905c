"""Chains of messages: a deal is proved by its messages alone, without any relay (docs/PROTOCOL.md §4)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

from .envelope import check_envelope, thread_of, verify
from .errors import Refused
from .jsontext import canonicalize
from .links import content_hash
from .payloads import Price
from .sealing import is_sealed

_MAX_BYTES = 1 << 20  # of a message
_CHAIN = ("REQUEST", "OFFER", "ACCEPT", "RESULT")

Message = Mapping[str, Any]


def _must(ok: object, message: str) -> None:
    if not ok:
        raise Refused("INVALID_PROOF", message)


@dataclass(frozen=True)
class Deal:
    """What a chain proves without any relay. home is the DID of the relay that decides the thread. price is the OFFER's
    price; None: it has none, or is sealed. accepted says that the chain has an ACCEPT. status is the RESULT's
    status."""

    client: str
    agent: str
    home: str
    intent: str
    price: Optional[Price]
    accepted: bool
    status: Optional[str]


def verify_chain(messages: Sequence[Message]) -> Deal:
    """Checks a chain: the messages REQUEST, OFFER, and perhaps ACCEPT and RESULT. Each is signed, and names by its hash
    the one that it answers. Raises Refused; details["index"] says which message is wrong."""
    _must(isinstance(messages, list) and 2 <= len(messages) <= len(_CHAIN), "a chain has two to four messages")
    for i, m in enumerate(messages):
        try:
            _check_link(messages[:i], m)
        except Refused as err:
            text = f"message {i + 1}, {_CHAIN[i]}: {err}"
            raise Refused("INVALID_PROOF", text, details={"index": i}) from None
    request, offer = messages[:2]
    result = messages[3]["payload"] if len(messages) > 3 else {}
    return Deal(
        request["sender"]["id"], offer["sender"]["id"], request["meta"]["home"]["did"], request["payload"].get("intent"),
        _price(offer["payload"].get("price")), len(messages) > 2, result.get("status"))


def _price(price: object) -> Optional[Price]:
    amount, currency = (price.get("amount"), price.get("currency") or "") if isinstance(price, dict) else (None, "")
    if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not isinstance(currency, str):
        return None
    return Price(amount, currency)


def _check_link(before: Sequence[Message], m: Message) -> None:
    verify(check_envelope(m, max_bytes=_MAX_BYTES))
    _must(m["type"] == _CHAIN[len(before)], "it has another type")
    meta = m.get("meta", {})
    _must("home" in meta, "it has no meta.home")
    if not before:
        return
    request, last = before[0], before[-1]
    _must(meta["home"] == request["meta"]["home"], "its meta.home is not that of the REQUEST")
    _must("re" in meta, f"it has no meta.re, so it does not say which {last['type']} it answers")
    is_answer = meta["re"] == content_hash(last)
    _must(is_answer, f"its meta.re is not the hash of the {last['type']}, so it answers another message")
    _must(thread_of(m) == thread_of(request), "it is of another thread than the REQUEST")
    same_id = m["payload"].get("request_id", "") == request["payload"].get("request_id", "")
    _must(same_id, "its request_id is not that of the REQUEST")
    _check_parties(m, request, before[1] if len(before) > 1 else m)


def _check_parties(m: Message, request: Message, offer: Message) -> None:
    """Checks who has sent m, and to whom. Without a recipient, a message is for everybody."""
    client, agent = request["sender"]["id"], offer["sender"]["id"]
    is_asked = agent != client and _recipient(request) in (None, agent)
    _must(m["type"] != "OFFER" or is_asked, "its sender is not an agent that the REQUEST asks")
    start, end, of = (client, agent, "REQUEST") if m["type"] == "ACCEPT" else (agent, client, "OFFER")
    _must(m["sender"]["id"] == start, f"its sender is not that of the {of}")
    _must(_recipient(m) in (None, end), "it is for somebody else")


def _recipient(m: Message) -> Optional[str]:
    return m["recipient"]["id"] if "recipient" in m else None


def check_accepts(events: Sequence[Message]) -> str:
    """Checks the events of evidence against a client: two chains of REQUEST, OFFER and ACCEPT. Returns the client."""
    deals = [verify_chain(events[:3]), verify_chain(events[3:])]
    _must(deals[0].agent != deals[1].agent, "both OFFERs are by one agent")
    _must(deals[0].client == deals[1].client, "the REQUESTs are by two clients")
    requests = (events[0], events[3])
    root, other = (r["meta"].get("continues", content_hash(r)) for r in requests)
    _must(root == other, "the REQUESTs are of two jobs: neither continues the other, nor both the same one")
    is_open = not any(is_sealed(r) for r in requests)
    _must(is_open, "the payload of a REQUEST is sealed, so nobody else can tell what it asks for")
    payload, another = (canonicalize(dict(r["payload"], request_id="")) for r in requests)
    _must(payload == another, "the REQUESTs have different payloads, so they are of two jobs")
    return deals[0].client
