"""Agora for Python: agents that nobody can reach from outside find each other through a relay, and trade with signed
messages. Client is the start; agora_relay.sync has the same without asyncio. The README has complete programs."""
from . import sync
from .a2a import A2AEnd, A2AOutput, A2ATurn
from .call import Call, CallState, Rule
from .chain import Deal, verify_chain
from .client import Client
from .didkey import Identity, did_of, key_of
from .envelope import (
    Envelope,
    check_envelope,
    covered,
    decode64,
    encode64,
    format_time,
    instant,
    new_id,
    new_thread,
    read_envelope,
    sign,
    thread_of,
    verifies,
    verify,
)
from .errors import (
    AgentError,
    AgoraError,
    Cancelled,
    Closed,
    Endless,
    Gone,
    NoProof,
    Plain,
    Refused,
    RelayError,
    Unacceptable,
    UnknownOutcome,
    Unproven,
)
from .files import FileCursor, format_key_file, load_key, load_or_create_key, read_key_file, save_key
from .follow import CursorStore, Event
from .join import HUB_INTENT, Place, hub_message, hub_output
from .jsontext import canonical_text, canonicalize, parse
from .links import Home, content_hash
from .netcall import NetworkCall, Timing
from .network import Network, RelayInfo
from .outlook import Outlook
from .payloads import Delivery, Job, Limits, Offer, Price, Quote, Result
from .proof import Cosigned, Finding, Leaf, Previous, Start, VerifiedProof, verify_evidence, verify_proof
from .proving import Proofs
from .readtoken import call_token, check_read, read_token
from .records import About, Agent, AgentPage, Receipt, Thread, Transition
from .sealing import is_sealed, open_payload, place, seal, x25519_private, x25519_public
from .state import State
from .transport import BodyTooLong, Response, StreamTransport, Transport, TransportFailed

open = open_payload  # as in the other packages: agora_relay.open(e, me)

__version__ = "0.2.0"

__all__ = [
    "A2AEnd",
    "A2AOutput",
    "A2ATurn",
    "About",
    "Agent",
    "AgentError",
    "AgentPage",
    "AgoraError",
    "BodyTooLong",
    "Call",
    "CallState",
    "Cancelled",
    "Client",
    "Closed",
    "Cosigned",
    "CursorStore",
    "Deal",
    "Delivery",
    "Endless",
    "Envelope",
    "Event",
    "FileCursor",
    "Finding",
    "Gone",
    "HUB_INTENT",
    "Home",
    "Identity",
    "Job",
    "Leaf",
    "Limits",
    "Network",
    "NetworkCall",
    "NoProof",
    "Offer",
    "Outlook",
    "Place",
    "Plain",
    "Previous",
    "Price",
    "Proofs",
    "Quote",
    "Receipt",
    "Refused",
    "RelayError",
    "RelayInfo",
    "Response",
    "Result",
    "Rule",
    "Start",
    "State",
    "StreamTransport",
    "Thread",
    "Timing",
    "Transition",
    "Transport",
    "TransportFailed",
    "Unacceptable",
    "UnknownOutcome",
    "Unproven",
    "VerifiedProof",
    "call_token",
    "canonical_text",
    "canonicalize",
    "check_envelope",
    "check_read",
    "content_hash",
    "covered",
    "decode64",
    "did_of",
    "encode64",
    "format_key_file",
    "format_time",
    "hub_message",
    "hub_output",
    "instant",
    "is_sealed",
    "key_of",
    "load_key",
    "load_or_create_key",
    "new_id",
    "new_thread",
    "open_payload",
    "parse",
    "place",
    "read_envelope",
    "read_key_file",
    "read_token",
    "save_key",
    "seal",
    "sign",
    "sync",
    "thread_of",
    "verifies",
    "verify",
    "verify_chain",
    "verify_evidence",
    "verify_proof",
    "x25519_private",
    "x25519_public",
]
