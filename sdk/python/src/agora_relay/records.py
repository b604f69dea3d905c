"""What a relay answers: receipts, threads, agents, its document."""
from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Mapping

from .answer import MAX_SHORT, Envelopes, text_of, verified
from .didkey import Identity, key_of
from .envelope import Envelope
from .errors import RelayError, Refused
from .follow import Event
from .payloads import time_of
from .protocol import DEFAULT_TTL


def malformed(what: str) -> RelayError:
    """The error for an answer that is not as the protocol says."""
    return RelayError("INVALID_ANSWER", f"the relay's answer is malformed: {what}", status=200)


def _time(answer: Mapping[str, Any], name: str) -> datetime.datetime | None:
    try:
        return time_of(answer[name]) if answer.get(name) is not None else None
    except (Refused, ValueError, OverflowError, OSError):
        raise malformed(f"{name} is not a time") from None


@dataclasses.dataclass(frozen=True)
class Receipt:
    """The relay's confirmation that a message is on disk and will be delivered until expires_at."""

    id: str
    cursor: str
    """The position of the message; empty if one request has posted many messages."""
    duplicate: bool
    """The relay had stored the message before; this post had no effect."""
    expires_at: datetime.datetime | None
    thread: str
    """The thread of the message; empty for a MANIFEST, and if one request has posted many messages."""
    state: str
    """The state of the thread after the message; empty: the relay does not say."""
    envelope: Envelope
    """The message as it was signed."""
    proof: str | None = None
    """The text of the proof that the relay has the message in its log (docs/PROOFS.md). It was checked."""

    @classmethod
    def of(cls, answer: dict[str, Any], envelope: Envelope) -> Receipt:
        """The receipt for envelope. Its proof is not checked. Raises RelayError if it is for another message."""
        if answer.get("id") != envelope["id"]:
            raise malformed("the receipt is for another message")
        thread = answer.get("thread")
        thread = thread if isinstance(thread, dict) else {}
        expires = _time(answer, "expiresAt")
        ttl = envelope.get("meta", {}).get("ttl", DEFAULT_TTL)
        try:  # no relay keeps a message longer than its signed ttl
            signed = time_of(envelope["ts"]) + datetime.timedelta(seconds=float(ttl))
            expires = min(expires, signed) if expires else None
        except (ValueError, OverflowError):
            pass  # later than a datetime can be
        return cls(
            envelope["id"],
            text_of(answer, "cursor"),
            answer.get("duplicate") is True,
            expires,
            text_of(thread, "id"),
            text_of(thread, "state"),
            envelope,
            text_of(answer, "proof", MAX_SHORT) or None,
        )


@dataclasses.dataclass(frozen=True)
class Transition:
    """A step in the history of a thread. by and id are empty for a timeout."""

    type: str
    to: str
    by: str
    id: str


@dataclasses.dataclass(frozen=True)
class Thread:
    """A relay's record of a thread, which is not signed, and its events, which are verified."""

    id: str
    client: str
    state: str
    """PENDING, ACTIVE, COMPLETED or ERROR, as the relay claims."""
    request_id: str = ""
    agent: str = ""
    """The accepted agent, as the relay claims; empty: none."""
    offers: list[str] = dataclasses.field(default_factory=list)
    """The agents with an open offer, as the relay claims."""
    transitions: list[Transition] = dataclasses.field(default_factory=list)
    deadline: datetime.datetime | None = None
    """When the relay will end the thread, by its clock; None: it has ended."""
    events: list[Event] = dataclasses.field(default_factory=list)
    expired: int = 0
    """How many further messages have expired, as the relay claims."""

    @classmethod
    def of(cls, answer: dict[str, Any], events: list[Event]) -> Thread:
        """The thread in an answer. Raises RelayError."""
        record, expired = answer.get("thread"), answer.get("expired", 0)
        if not isinstance(record, dict) or not isinstance(expired, int):
            raise malformed("it has no thread")
        return cls(
            id=text_of(record, "id"),
            client=text_of(record, "client"),
            state=text_of(record, "state"),
            request_id=text_of(record, "requestId"),
            agent=text_of(record, "agent"),
            offers=[text_of(offer, "agent") for offer in _objects(record, "offers")],
            transitions=[
                Transition(*(text_of(step, name) for name in ("type", "to", "by", "id")))
                for step in _objects(record, "transitions")
            ],
            deadline=_time(record, "deadline"),
            events=events,
            expired=expired,
        )

    @property
    def request(self) -> Event | None:
        """The REQUEST of the thread, or None if the relay does not show it because it has expired or is hidden."""
        for event in self.events:
            if event.type == "REQUEST" and event.sender == self.client and event.request_id == self.request_id:
                return event
        return None

    def sealed(self, agent: str) -> bool:
        """Whether any message between the client and this agent is sealed, as far as the relay shows their
        messages."""
        return any(
            event.sealed
            and event.request_id == self.request_id
            and (event.sender, event.recipient) in ((self.client, agent), (agent, self.client))
            for event in self.events
        )

    @property
    def timed_out(self) -> bool:
        """Whether the relay says that it has ended the thread at its deadline."""
        return self.state == "ERROR" and bool(self.transitions) and self.transitions[-1].type == "TIMEOUT"


def _objects(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise malformed(f"{name} is not a list of objects")
    return value


@dataclasses.dataclass(frozen=True)
class Agent:
    """A row of the directory. online and last_seen are claims of the relay. The manifests are signed by the agent."""

    id: str
    online: bool
    last_seen: datetime.datetime | None
    manifests: list[Event]

    @classmethod
    def of(cls, row: Mapping[str, Any], manifests: list[Envelope], me: Identity | None) -> Agent:
        """The agent of a row. It leaves out what is not a MANIFEST of this agent. Raises RelayError."""
        did = text_of(row, "id")
        own = [e for e in manifests if e["type"] == "MANIFEST" and e["sender"]["id"] == did]
        return cls(did, row.get("online") is True, _time(row, "lastSeen"), [Event.of(e, me) for e in own])


@dataclasses.dataclass(frozen=True)
class AgentPage:
    """One page of the directory. If has_more is true, pass cursor to read the next one."""

    agents: list[Agent]
    has_more: bool
    cursor: str


def agent_of(answer: dict[str, Any], envelopes: Envelopes, did: str, me: Identity | None) -> Agent:
    """The agent in the answer to GET /agents/{did}. Raises RelayError."""
    agent = Agent.of(answer, envelopes.valid, me)
    if agent.id != did:
        raise malformed("it is not about the agent that was asked for")
    return agent


def row_of(row: Mapping[str, Any], manifest: bytes, me: Identity | None) -> Agent:
    """The agent in a row of GET /agents, with its one manifest. Raises Refused."""
    agent = Agent.of(row, [verified(manifest)], me)
    if not agent.manifests:
        raise malformed("the manifest belongs to another agent")
    return agent


@dataclasses.dataclass(frozen=True)
class About:
    """The relay's document. did is the relay's identity, private whether it shows messages only to their parties."""

    did: str
    private: bool
    document: dict[str, Any]
    """The whole document, with the relay's limits, timeouts and features."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> About:
        """Raises RelayError if the document has no valid did."""
        try:
            key_of(document.get("did"))
        except Refused as err:
            raise malformed(f"did: {err.message}") from None
        return cls(document["did"], document.get("reads") == "parties", document)
