"""The REQUESTs that wait for an answer, and which one is next."""
from __future__ import annotations

import asyncio
import collections
import dataclasses
import random

from .follow import Event
from .jsontext import canonicalize
from .pace import KNOWN, Pace
from .progress import Page
from .protocol import DEFAULT_TTL
from .waiting import Backoff, Recent

Key = tuple[str, str]
"""A thread: the did:key of its client, and its id."""

DIRECTED, BROADCAST = (
    1,
    2,
)  # ranks after KNOWN: REQUESTs of other clients, with this agent as recipient and without one
RANKS = (KNOWN, DIRECTED, BROADCAST)
# Bounds of each rank. A relay accepts 20 offers a second by default, so a REQUEST that does not fit would have to
# wait for more than a minute and a half.
QUEUE_LENGTH = 2048
QUEUE_BYTES = 8 << 20
TURN_SECONDS = 60.0  # after this time all counts of turns are reset
MAX_CLIENTS = 4096  # clients with a count of turns, and clients with credit
WORK_CREDIT = 8  # credit for each job that is begun for a client; a REQUEST of rank KNOWN uses up one
MAX_CREDIT = 64
REVERSE_TURN = 4  # every fourth turn takes the ranks in reverse order
NEW_SECONDS = 1.0  # how long a REQUEST counts as new


@dataclasses.dataclass(eq=False)
class Queued:
    """A REQUEST that waits for an answer. page is released when it is handled."""

    key: Key
    event: Event
    page: Page
    unposted: dict[str, object] | None = None  # the offer of an earlier try that could not be posted
    rank: int = BROADCAST
    sequence: int = 0
    arrived: float = 0.0
    expires: float = 0.0  # when its ttl ends, counted from its arrival
    not_before: float = 0.0  # after a failed answer: when to retry
    pause: Backoff = dataclasses.field(default_factory=Backoff)
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(canonicalize(self.event.envelope))


class Queue:
    """Decides which REQUEST is next. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self.added = asyncio.Event()  # set after a REQUEST was added
        self._lists: list[list[Queued]] = [[] for _ in RANKS]
        self._bytes = [0 for _ in RANKS]
        self._arrivals = self._turns = 0
        self._served: collections.Counter[str] = collections.Counter()  # turns of each client since the time counted
        self._counted = 0.0
        self._credit: Recent[str, int] = Recent(MAX_CLIENTS)

    def earn(self, client: str) -> None:
        """Adds to the credit of a client, when the agent begins to work for it."""
        self._credit.add(client, min((self._credit.get(client) or 0) + WORK_CREDIT, MAX_CREDIT))

    def put(self, w: Queued, now: float) -> list[Queued]:
        """Adds a REQUEST that has just arrived. Returns those that no longer fit, which may include w."""
        self._arrivals += 1
        ttl = float(w.event.envelope.get("meta", {}).get("ttl", DEFAULT_TTL))
        w.sequence, w.arrived, w.expires = self._arrivals, now, now + ttl
        credit = self._credit.get(w.event.sender) or 0
        if credit > 0:
            self._credit.add(w.event.sender, credit - 1)
            w.rank = KNOWN
        else:
            w.rank = DIRECTED if w.event.recipient else BROADCAST
        return self.put_back(w)

    def put_back(self, w: Queued) -> list[Queued]:
        """Adds a REQUEST again that next has returned, but that could not be answered."""
        queued = self._lists[w.rank]
        queued.append(w)
        self._bytes[w.rank] += w.size
        dropped = []
        while len(queued) > QUEUE_LENGTH or self._bytes[w.rank] > QUEUE_BYTES:
            # The client with fewer turns is kept, then the REQUEST that arrived later.
            dropped.append(self._remove(min(queued, key=lambda q: (-self._served[q.event.sender], q.sequence))))
        self.added.set()
        return dropped

    def _remove(self, w: Queued) -> Queued:
        self._lists[w.rank].remove(w)
        self._bytes[w.rank] -= w.size
        return w

    def withdraw(self, key: Key) -> Queued | None:
        """Removes and returns the REQUEST of a thread, or None if the queue does not have it."""
        found = self.find(key)
        return self._remove(found) if found else None

    def find(self, key: Key) -> Queued | None:
        """The REQUEST of a thread, or None if the queue does not have it."""
        return next((w for queued in self._lists for w in queued if w.key == key), None)

    def next(self, now: float, pace: Pace) -> tuple[Queued | None, list[Queued], float | None]:
        """Removes and returns the REQUEST to answer now, and counts one post in pace. If there is none, the third
        value is how long to wait before the next call; None: until a REQUEST is added. The second value has the
        REQUESTs whose ttl has ended. They are removed as well."""
        if now - self._counted >= TURN_SECONDS or len(self._served) >= MAX_CLIENTS:
            self._served.clear()
            self._counted = now
        late: list[Queued] = []
        waits: list[float] = []
        reverse = self._turns % REVERSE_TURN == REVERSE_TURN - 1
        for rank in reversed(RANKS) if reverse else RANKS:
            late += [self._remove(w) for w in list(self._lists[rank]) if now >= w.expires]
            best, wait = self._best(rank, now)
            if best:
                wait = pace.until(rank, now)
                if wait == 0:
                    self._remove(best)
                    self._served[best.event.sender] += 1
                    self._turns += 1
                    pace.spend(now)
                    return best, late, None
            if wait is not None:
                waits.append(wait)
        return None, late, min(waits, default=None)

    def _best(self, rank: int, now: float) -> tuple[Queued | None, float | None]:
        """The REQUEST of a rank to answer next. If all must wait before a retry, it returns the time until the first
        one.

        The client with the fewest turns comes first. Of equals, it picks one of their new REQUESTs at random, because
        to pick the newest would favour a client that floods the queue. If none is new, it picks the newest."""
        ready = [w for w in self._lists[rank] if w.not_before <= now]
        if not ready:
            return None, min((w.not_before - now for w in self._lists[rank]), default=None)
        fewest = min(self._served[w.event.sender] for w in ready)
        equals = [w for w in ready if self._served[w.event.sender] == fewest]
        new = [w for w in equals if now - w.arrived < NEW_SECONDS]
        return (random.choice(new) if new else max(equals, key=lambda w: w.sequence)), None


class FairSlots:
    """Slots that clients share. A free slot goes to the waiting client that holds the fewest slots; of equals, to the
    one that has waited longest."""

    def __init__(self, free: int):
        self._free = free
        self._held: collections.Counter[str] = collections.Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def acquire(self, client: str) -> None:
        """Waits for a slot, which the caller returns with release."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, granted))
        self._assign()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(client)
            else:
                self._waiting = [(who, other) for who, other in self._waiting if other is not granted]
            raise

    def release(self, client: str) -> None:
        """Returns a slot."""
        self._free += 1
        self._held[client] -= 1
        if self._held[client] == 0:
            del self._held[client]
        self._assign()

    def _assign(self) -> None:
        while self._free and self._waiting:
            chosen = min(self._waiting, key=lambda waiter: self._held[waiter[0]])
            self._waiting.remove(chosen)
            client, granted = chosen
            if not granted.done():
                self._free -= 1
                self._held[client] += 1
                granted.set_result(None)
