"""What the relay's directory says about a request before it is sent. Agents that decline a broadcast do so silently. So
without it, a mistyped intent and a price that is too low look like a long silence."""
from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Iterable

from .errors import RelayError, safe
from .follow import Event
from .records import Agent

if TYPE_CHECKING:
    from .client import Client

PATIENCE = 3.0  # seconds
PAGE, PAGES = 100, 3  # agents of a page, and pages that are read
MAX_INTENTS, MAX_NAME = 2000, 100  # names of other intents, and characters of a name that can be a suggestion
MAX_NEAREST, MAX_SHOWN = 5, 40  # names that are suggested, and characters of a name that are shown


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What the directory says about a request. It proves nothing: an agent may serve what it does not announce, and may
    offer for less than it announces."""

    agents: int
    """How many agents announce the intent; at most 300 are read."""
    online: int
    """How many of them the relay has heard from in the last five minutes."""
    price: float | None
    """The lowest price in USD, if each of them announces one; None: the price is not known."""
    nearest: list[str]
    """If no agent announces the intent: at most five announced intents, the most similar first. They are texts of
    others."""
    example: str | None
    """The did:key of an agent that announces the intent, an online one if there is one."""


def distance(a: str, b: str) -> int:
    """How many letters must be added, removed, replaced or swapped to turn a into b."""
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        row = [i]
        for j in range(1, len(b) + 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, above = above, row
    return above[-1]


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most five of the known names, the most similar first. A name that contains the other one comes before the
    rest."""
    word = name[:MAX_NAME].lower()

    def key(other: str) -> tuple[bool, int, str]:
        lower = other.lower()
        within = word != "" and (word in lower or lower in word)
        return not within, distance(word, lower), other

    return sorted(known, key=key)[:MAX_NEAREST]


def _price(pricing: Any) -> float | None:
    """The price in USD of a manifest's pricing; None: it does not say one."""
    pricing = pricing if isinstance(pricing, dict) else {}
    model, currency, price = pricing.get("model"), pricing.get("currency"), pricing.get("fixed_price")
    if not isinstance(model, str):
        return None
    if model.lower() == "free":
        return 0.0
    fixed = model.lower() == "fixed" and isinstance(currency, str) and currency.lower() == "usd"
    number = isinstance(price, (int, float)) and not isinstance(price, bool) and price >= 0
    return float(price) if fixed and number else None


def _intents(manifest: Event) -> list[str]:
    intents = manifest.payload.get("intents")
    ids = [intent.get("id") if isinstance(intent, dict) else None for intent in intents or []] if isinstance(
        intents, list
    ) else []
    return [id for id in ids if isinstance(id, str) and id]


async def outlook(client: Client, intent: str, to: str | None) -> Outlook:
    """See Client.outlook."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await _outlook(client, intent, to)
    except TimeoutError:
        raise RelayError("NO_ANSWER", f"reading the directory took more than {PATIENCE:.0f} s") from None


async def _outlook(client: Client, intent: str, to: str | None) -> Outlook:
    agents, everyone = await (_named(client, to) if to else _some(client, intent))
    prices: list[float | None] = []
    own: list[Agent] = []
    for agent in agents:
        manifest = next((m for m in agent.manifests if intent in _intents(m)), None)
        if manifest:
            own.append(agent)
            prices.append(_price(manifest.payload.get("pricing")))
    known = [price for price in prices if price is not None]
    names: dict[str, None] = {}
    if not own:
        others = agents if to else (await _some(client, None))[0]
        for id in (id for agent in others for m in agent.manifests for id in _intents(m)):
            if len(id) <= MAX_NAME and len(names) < MAX_INTENTS:
                names[id] = None
    online = [agent for agent in own if agent.online]
    price = min(known) if everyone and known and len(known) == len(prices) else None
    example = (online or own)[0].id if own else None
    return Outlook(len(own), len(online), price, nearest(intent, names), example)


async def _named(client: Client, did: str) -> tuple[list[Agent], bool]:
    try:
        return [await client.agent(did)], True
    except RelayError as err:
        if err.code != "AGENT_NOT_FOUND":
            raise
        return [], True


async def _some(client: Client, intent: str | None) -> tuple[list[Agent], bool]:
    """The agents of the first pages of the directory, and whether those are all."""
    agents: list[Agent] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.agents(intent=intent, limit=PAGE, cursor=cursor)
        agents += page.agents
        if not page.has_more:
            return agents, True
        if page.cursor in ("", cursor):
            break
        cursor = page.cursor
    return agents, False


def _shown(name: str) -> str:
    return safe(name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…")


def doubt(found: Outlook | None, intent: str, *, to: str | None, max_cost: float | None) -> str:
    """Why it is not likely that somebody offers; empty: it is likely, or nothing is known."""
    if found is None:
        return ""
    if found.agents == 0:
        names = "; the nearest names are " + ", ".join(map(_shown, found.nearest)) if found.nearest else ""
        return f"{f'{to} does not announce' if to else 'nobody announces'} {_shown(intent)}{names}"
    if found.price is not None and max_cost is not None and found.price > max_cost:
        return f"the cheapest agent announces {found.price:g} USD for {_shown(intent)}, and max_cost is {max_cost:g}"
    if to and found.online == 0:
        return f"{to} is offline: the relay has not heard from it for five minutes"
    return ""


def hint(found: Outlook | None, intent: str, *, to: str | None, max_cost: float | None) -> str:
    """What to say if nobody has offered."""
    why = doubt(found, intent, to=to, max_cost=max_cost)
    if why:
        return why
    if to:
        return "client.agent(did) shows whether the agent is online"
    counts = f"agents that announce {_shown(intent)}: {found.agents}, online: {found.online}; " if found else ""
    example = f'="{found.example}"' if found and found.example else " and its DID"
    return (
        f"{counts}perhaps the params are not what they need. An agent that declines says why only if you ask it "
        f"directly, with the argument to{example}"
    )
