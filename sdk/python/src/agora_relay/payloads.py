"""Payloads: what clients and agents read in a message's payload, and what they write."""
from __future__ import annotations

import dataclasses
import datetime
import math
import threading
from typing import Any, Mapping

from .envelope import SECOND, Envelope, format_time, instant
from .errors import AgentError, Refused
from .follow import Event, seconds_of
from .jsontext import canonical_text


def _number(payload: Mapping[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is not a number")
    return float(value)


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value or ""


def _shown(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else canonical_text(value)


def read_time(payload: Mapping[str, Any], name: str) -> datetime.datetime | None:
    """A member of a payload that is a time; absent: None. Raises ValueError if it is malformed."""
    value = payload.get(name)
    if value is None:
        return None
    try:
        return time_of(value)
    except (Refused, OverflowError, OSError) as err:
        raise ValueError(f"{name} is not a time") from err


def time_of(text: object) -> datetime.datetime:
    """Converts an RFC 3339 date-time to a datetime in UTC. Raises Refused, and OverflowError or ValueError for a year
    that a datetime cannot have."""
    return datetime.datetime.fromtimestamp(instant(text) / SECOND, datetime.timezone.utc)


def _object(payload: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = payload.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


class Price(float):
    """An amount with its currency, as in an OFFER. It counts and prints as its amount. Compare prices only if their
    currency is the same."""

    currency: str
    """ISO 4217, such as USD; empty: the offer names none."""

    def __new__(cls, amount: float, currency: str = "USD") -> Price:
        price = super().__new__(cls, amount)
        price.currency = currency
        return price

    @property
    def amount(self) -> float:
        """The number without the currency."""
        return float(self)

    def payload(self) -> dict[str, Any]:
        """The member price of an OFFER. Raises ValueError if the amount is no number."""
        if not math.isfinite(self):
            raise ValueError("the price is not a number")
        return {"amount": float(self), "currency": self.currency}

    def pricing(self) -> dict[str, Any]:
        """The member pricing of a manifest."""
        if float(self) == 0:
            return {"model": "free"}
        return {"model": "fixed", "currency": self.currency, "fixed_price": float(self)}


def price_of(value: float | Price) -> Price:
    """The price that a program has given; a number is in USD. Raises TypeError and ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a price must be a number of USD, or a Price, and not {type(value).__name__}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("a price must be a finite number, and not negative")
    return value if isinstance(value, Price) else Price(value)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a client demands of offers. max_cost is in USD. None: no limit."""

    max_cost: float | None = None
    deadline: datetime.datetime | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.max_cost, (int, float)) and not isinstance(self.max_cost, bool)
        if self.max_cost is not None and not number:
            raise TypeError(f"max_cost must be a number of USD, such as 0.05, and not {type(self.max_cost).__name__}")

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Limits:
        """The limits in the payload of a REQUEST. Raises ValueError."""
        constraints = _object(request, "constraints") or {}
        return cls(_number(constraints, "max_cost_usd"), read_time(constraints, "deadline"))

    def payload(self) -> dict[str, Any]:
        """The member constraints of a REQUEST. Raises ValueError."""
        if self.max_cost is not None and not self.max_cost >= 0:
            raise ValueError("max_cost is not an amount of USD, such as 0.5")
        constraints: dict[str, Any] = {} if self.max_cost in (None, math.inf) else {"max_cost_usd": self.max_cost}
        if self.deadline is not None:
            constraints["deadline"] = format_time(seconds_of(self.deadline))
        return constraints


def request_payload(
    intent: str,
    params: Any,
    limits: Limits,
    constraints: Mapping[str, Any] | None,
    title: str | None,
    description: str | None,
) -> dict[str, Any]:
    """The payload of a REQUEST, without the request_id."""
    members = {
        "intent": intent,
        "title": title,
        "description": description,
        "constraints": dict(constraints or {}) | limits.payload() or None,
        "params": params,
    }
    return {name: value for name, value in members.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Offer:
    """An agent's verified OFFER. Compare prices only if in_usd is true for both."""

    agent: str
    """The did:key of the agent."""
    price: Price | None
    """A number, with amount and currency; None: the offer names no price; NaN: its price has no number as amount."""
    currency: str
    """The currency of the price; empty: the offer names none."""
    eta_seconds: float | None
    """How long the work will take, by the agent's estimate; None: the offer does not say."""
    plan: str
    """How the agent will do the work, in words for people; may be empty."""
    valid_until: datetime.datetime | None
    """When the offer ends; None: it does not say."""
    event: Event
    """The verified OFFER."""

    @classmethod
    def of(cls, event: Event) -> Offer:
        """The offer in an OFFER. Raises ValueError if its payload is malformed."""
        payload = event.payload
        price = _object(payload, "price")
        amount = _number(price, "amount") if price is not None else None
        currency = _text(price or {}, "currency")
        return cls(
            agent=event.sender,
            price=None if price is None else Price(math.nan if amount is None else amount, currency),
            currency=currency,
            eta_seconds=_number(payload, "eta_seconds"),
            plan=_text(payload, "plan"),
            valid_until=read_time(payload, "valid_until"),
            event=event,
        )

    @property
    def request_id(self) -> str:
        """The request that the offer is for."""
        return self.event.request_id

    @property
    def payload(self) -> dict[str, Any]:
        """The whole payload of the OFFER."""
        return self.event.payload

    @property
    def in_usd(self) -> bool:
        """Whether the price can be compared with max_cost: it is in USD, or it is zero, in any currency."""
        return comparable(self.price, self.currency)


def comparable(price: float | None, currency: str) -> bool:
    """Whether a price is in USD, or is zero."""
    return price is not None and (currency.upper() == "USD" or price == 0)


@dataclasses.dataclass(frozen=True)
class Result:
    """An agent's verified RESULT."""

    output: Any
    """What the agent delivers: any JSON value."""
    status: str
    """By convention, success; empty if it is absent or no text."""
    agent: str
    """The did:key of the agent."""
    thread: str
    """The id of the thread."""
    artifacts: Any
    """What the agent delivers besides the output, as the agent has written it; None: nothing."""
    metrics: Any
    """What the agent says about the work, such as its duration, as the agent has written it; None: nothing."""
    event: Event
    """The verified RESULT."""

    @classmethod
    def of(cls, event: Event) -> Result:
        """The result in a RESULT."""
        payload = event.payload
        return cls(
            payload.get("output"),
            event.text("status"),
            event.sender,
            event.thread,
            payload.get("artifacts"),
            payload.get("metrics"),
            event,
        )

    @property
    def envelope(self) -> Envelope:
        """The message as the agent has signed it."""
        return self.event.envelope


@dataclasses.dataclass(frozen=True)
class Job:
    """What an agent is asked to do."""

    intent: str
    """The intent of the REQUEST, one of those that the agent serves."""
    params: Any
    """The input: any JSON value that the client has chosen, so check it; None: there is none."""
    client: str
    """The did:key of the client."""
    thread: str
    """The id of the thread. It is the same if the agent does the work again after a crash."""
    limits: Limits
    """The client's max_cost and deadline."""
    title: str
    """A title for people; may be empty."""
    description: str
    """What the client wants, in words for people; may be empty."""
    event: Event
    """The verified REQUEST."""
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event, compare=False)
    """Set when the work is no longer wanted. A blocking function should look at it now and then."""

    @classmethod
    def of(cls, event: Event) -> Job:
        """The job in a REQUEST. Raises ValueError if its payload is malformed."""
        payload = event.payload
        return cls(
            intent=_text(payload, "intent"),
            params=payload.get("params"),
            client=event.sender,
            thread=event.thread,
            limits=Limits.of(payload),
            title=_text(payload, "title"),
            description=_text(payload, "description"),
            event=event,
        )

    @property
    def constraints(self) -> dict[str, Any]:
        """The constraints as the protocol names them: max_cost_usd, deadline, max_latency_ms."""
        return self.event.payload.get("constraints") or {}

    @property
    def sealed(self) -> bool:
        """Whether the REQUEST was sealed. The answers are sealed then too."""
        return self.event.sealed


@dataclasses.dataclass(frozen=True)
class Quote:
    """What an agent offers to do a job for. eta_seconds is how long the work will take."""

    price: float | Price = 0.0
    currency: str = "USD"
    """The currency of price, if price is a number."""
    eta_seconds: float | None = None
    plan: str | None = None
    valid_until: datetime.datetime | None = None

    def payload(self) -> dict[str, Any]:
        """The payload of an OFFER, without the request_id. Raises ValueError if the price is not a number."""
        price = self.price if isinstance(self.price, Price) else Price(self.price, self.currency)
        valid_until = format_time(seconds_of(self.valid_until)) if self.valid_until else None
        optional = {"eta_seconds": self.eta_seconds, "plan": self.plan, "valid_until": valid_until}
        return {"price": price.payload()} | {
            name: value for name, value in optional.items() if value is not None
        }


@dataclasses.dataclass(frozen=True)
class Delivery:
    """The result of the work, for an agent that has more to say than an output."""

    output: Any = None
    status: str = "success"
    artifacts: Any = None
    metrics: Any = None

    def payload(self) -> dict[str, Any]:
        """The payload of a RESULT, without the request_id."""
        optional = {"artifacts": self.artifacts, "metrics": self.metrics}
        return {"status": self.status, "output": self.output} | {
            name: value for name, value in optional.items() if value is not None
        }


def failure(err: AgentError) -> dict[str, Any]:
    """The payload of an ERROR, without the request_id."""
    details = {"details": err.details} if err.details else {}
    return {"code": err.code, "message": err.message or err.code} | details


def agent_error(event: Event) -> AgentError:
    """The error in an ERROR. A code or a message that is no text is shown as JSON."""
    payload = event.payload
    details = payload.get("details")
    return AgentError(
        _shown(payload.get("code")),
        _shown(payload.get("message")),
        sender=event.sender,
        details=details if isinstance(details, dict) else None,
    )
