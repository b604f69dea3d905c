"""Delays an agent's offers so that they stay below the relay's rate limit. So the agent can always post a RESULT."""
from __future__ import annotations

DEFAULT_RATE = 20.0, 40.0  # posts a second and burst of PROTOCOL §5, if the relay's document does not say
KNOWN = 0  # the rank of the REQUESTs of clients with credit; see queue.py


class Pace:
    """A copy of the relay's token bucket for this sender. It delays offers only after the relay has refused a post
    because of the rate, because a relay on the same machine may have no limit. Times come from a monotonic clock.
    """

    def __init__(self) -> None:
        self._rate: tuple[float, float] | None = None  # posts a second and burst; None: no post was refused yet
        self._tokens, self._counted = 0.0, 0.0  # posts that the relay would accept, at the time counted
        self._closed = 0.0  # no offers before this time

    def limited(self, rate: tuple[float, float], delay: float, now: float) -> None:
        """Sets the rate after the relay has refused a post of this agent, and stops all offers for delay seconds."""
        self._refill(now)
        self._rate, self._tokens, self._counted = rate, min(self._tokens, 0.0), now
        self._closed = now + delay

    def close(self, delay: float, now: float) -> None:
        """Stops all offers for delay seconds."""
        self._closed = max(self._closed, now + delay)

    def until(self, rank: int, now: float) -> float:
        """How many seconds a REQUEST of this rank has to wait. Known clients leave an eighth of the burst unused,
        others a quarter: these tokens are reserved for other messages."""
        wait = max(self._closed - now, 0.0)
        if self._rate is None:
            return wait
        self._refill(now)
        per_second, burst = self._rate
        missing = min(1 + burst / (8 if rank == KNOWN else 4), burst) - self._tokens
        return max(wait, missing / per_second + 0.001) if missing > 0 else wait

    def spend(self, now: float) -> None:
        """Counts a post."""
        self._add(-1.0, now)

    def refund(self, now: float) -> None:
        """Undoes a spend whose post was not made."""
        self._add(1.0, now)

    def _add(self, tokens: float, now: float) -> None:
        self._refill(now)
        if self._rate:
            self._tokens = max(self._tokens + tokens, -self._rate[1])

    def _refill(self, now: float) -> None:
        if self._rate:
            per_second, burst = self._rate
            self._tokens = min(self._tokens + max(now - self._counted, 0.0) * per_second, burst)
        self._counted = now
