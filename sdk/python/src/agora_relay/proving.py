"""When a client asks a relay for proofs, and what it does if they do not hold (docs/PROOFS.md)."""
from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Literal, get_args

from .answer import log, permanent
from .envelope import Envelope
from .errors import NoProof, Refused, RelayError
from .jsontext import canonicalize
from .records import Receipt

if TYPE_CHECKING:
    from .client import Client

Proofs = Literal["off", "prefer", "required"]


def check_rule(proofs: str) -> None:
    """Raises ValueError unless proofs is a value of the option."""
    if proofs not in get_args(Proofs):
        raise ValueError("proofs must be 'off', 'prefer' or 'required'")


async def asks(client: Client) -> bool:
    """Whether the client wants proofs and the relay can give them. Raises RelayError."""
    return client.proofs != "off" and await client.proves()


async def proved(client: Client, receipt: Receipt) -> Receipt:
    """Checks the proof in a receipt. If it does not hold, or must be there and is not, the proof is read once from the
    relay. Returns the receipt with the proof that holds. Raises NoProof."""
    message, text = receipt.envelope, receipt.proof
    wrong: Refused | None = None
    if client.proofs == "off" or text is None and client.proofs == "prefer":
        return dataclasses.replace(receipt, proof=None)
    if text is not None:
        try:
            relay = await client.relay_did()
        except RelayError as err:
            if client.proofs == "prefer":  # it has stored the message, and is not there any more
                log.warning("the proof of a message is not checked: the relay does not say who it is (%s)", err)
                return dataclasses.replace(receipt, proof=None)
            wrong = err
        else:
            try:
                client._verify_proof(text, message, relay)
                return receipt
            except Refused as err:
                wrong = err
    try:
        text, _ = await client.proof(message)
    except Refused as err:
        missing = wrong is None and isinstance(err, RelayError) and err.status == 404
        raise NoProof(wrong or err, message, missing=missing)
    return dataclasses.replace(receipt, proof=text)


async def objection(client: Client, accept: Envelope, request: Envelope) -> str:
    """Why an agent must not begin to work after the ACCEPT of a REQUEST; empty: it may. Raises RelayError if the proof
    cannot be read now."""
    if client.proofs != "required" and not await asks(client):
        return ""
    try:
        _, found = await client.proof(accept)
    except RelayError as err:
        if err.status != 404 and not permanent(err):
            raise
        why = "the relay gives no proof that it has stored the ACCEPT"
    except Refused:
        return "the proof of the relay for the ACCEPT does not hold"
    else:
        named = found.leaf and found.leaf.request
        if named == hashlib.sha256(canonicalize(request)).hexdigest():
            return ""
        if named:
            return "the proof of the relay says that the ACCEPT belongs to another REQUEST"
        why = "the proof of the relay does not say to which REQUEST the ACCEPT belongs"
    if client.proofs == "required":
        return why
    log.warning("%s; working without one", why)
    return ""
