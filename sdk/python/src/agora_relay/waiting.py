"""Pauses between attempts, and maps with a bounded number of keys."""
from __future__ import annotations

import asyncio
import random
from typing import Generic, Hashable, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MIN_PAUSE = 0.5  # seconds; the pauses grow from about this
MAX_PAUSE = 30.0  # seconds; to about this

# The longest delay from a Retry-After header that the client waits before a retry, in seconds.
POST_PATIENCE = 120.0  # for a post; much shorter than the age at which a message is stale
READ_PATIENCE = 3600.0  # for a read, and for the manifest of an agent


class Backoff:
    """Computes the pauses between attempts from the number of failures in a row."""

    def __init__(self) -> None:
        self.failures = 0

    def reset(self) -> None:
        """The next pause is short again."""
        self.failures = 0

    def next(self, at_least: float = 0.0, limit: float = MAX_PAUSE) -> float:
        """The next pause in seconds: at least at_least, plus a random time that about doubles with each failure, up to
        limit. Because it is random, clients that failed at the same moment do not retry at the same moment."""
        span: float = min(MIN_PAUSE * 2.0 ** min(self.failures, 10), limit)
        self.failures += 1
        pause = at_least + random.uniform(0, span / 2)
        return pause if at_least else pause + span / 2

    async def wait(self, at_least: float = 0.0, limit: float = MAX_PAUSE) -> None:
        """Sleeps for the next pause."""
        await asyncio.sleep(self.next(at_least, limit))


class Recent(Generic[K, V]):
    """A map that keeps only the size keys that were added last."""

    def __init__(self, size: int):
        self._size = size
        self._values: dict[K, V] = {}

    def add(self, key: K, value: V) -> bool:
        """Sets the value of a key. Returns whether the key is new. A new key replaces the oldest one if the map is
        full."""
        new = key not in self._values
        self._values[key] = value
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]
        return new

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        return self._values.get(key)
