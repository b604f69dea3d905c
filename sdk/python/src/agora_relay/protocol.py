"""The tables of the protocol. The command testvectors/protocol writes them."""
from __future__ import annotations

# <protocol: protocol>
TYPES: dict[str, set[str]] = {
    "REQUEST": {"request_id", "intent"},
    "OFFER": {"request_id"},
    "ACCEPT": {"request_id"},
    "RESULT": {"request_id", "status"},
    "ERROR": {"request_id", "code"},
    "CANCEL": {"request_id"},
    "MANIFEST": set(),
}
"""Every type of a message, with the members of its payload that sealing leaves readable."""

STATES = ["OPEN", "PENDING", "ACTIVE", "COMPLETED", "ERROR"]
"""The states of a thread."""

SETTLES = ["INVALID_REQUEST", "FORBIDDEN", "THREAD_NOT_FOUND", "DUPLICATE_ID", "INVALID_TRANSITION"]
"""Refusals which prove that the relay has stored no earlier attempt with the same bytes (PROTOCOL §3)."""

MOVED_ON = ["FORBIDDEN", "THREAD_NOT_FOUND", "DUPLICATE_ID", "INVALID_TRANSITION"]
"""Refusals of an agent's message which mean that the thread has changed since the agent has read it."""

AGENT_RETRYABLE = ["INSUFFICIENT_BUDGET", "TIMEOUT", "UNAVAILABLE", "INTERNAL_ERROR"]
"""Codes of agents after which a new request may succeed."""

STATUS = {
    "INVALID_REQUEST": 400,
    "UNSUPPORTED_VERSION": 400,
    "INVALID_DID": 400,
    "STALE_TIMESTAMP": 400,
    "EXPIRED": 400,
    "INVALID_SIGNATURE": 403,
    "FORBIDDEN": 403,
    "UNAUTHORIZED": 401,
    "THREAD_NOT_FOUND": 404,
    "AGENT_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "DUPLICATE_ID": 409,
    "INVALID_TRANSITION": 409,
    "PAYLOAD_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "RATE_LIMITED": 429,
    "INTERNAL_ERROR": 500,
    "UNAVAILABLE": 503,
}
"""Every code of a relay, with its HTTP status."""

DEFAULT_TTL = 300
"""Seconds that a message without meta.ttl is kept."""

DRAFT_TTL = 86400
"""Seconds that a message is kept by default, long enough for an agent that is offline overnight."""
# </protocol>
