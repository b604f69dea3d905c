"""What the agents of one identity share, one agent for each relay: the jobs, the work, and the handled events. A job is
worked on once, also if its client has moved it from relay to relay (RELAYS R-18)."""
from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, Callable

from .answer import log
from .book import CANCELLED, JobKey
from .calling import INTERNAL, Caller
from .errors import AgentError, Refused
from .follow import Event
from .jsontext import canonicalize
from .payloads import Delivery, Job, failure
from .queue import FairSlots
from .state import State
from .waiting import Recent

if TYPE_CHECKING:
    from .run import Run
    from .serve import Agent

FULL = AgentError(
    "UNAVAILABLE", "this agent has as many accepted jobs as it can remember; try again later"
)
MAX_IDS = 4096  # how many ids of messages are remembered, to log that one was used twice


class Inbox:
    """Tells which events are new, when several relays deliver them (RELAYS R-12)."""

    def __init__(self, state: State):
        self._state = state
        self._open: set[str] = set()  # the hashes of the events that are being handled
        self._ids: Recent[tuple[str, str], str] = Recent(MAX_IDS)

    def is_new(self, event: Event, now: float, by_home: bool = False) -> bool:
        """Whether an event did not come before, with the same hash. If it returns True, call done later. What the home
        of a thread shows again (by_home) is handled again: the home may have been restored from a backup without the
        answer."""
        if not by_home and (event.hash in self._open or self._state.has_handled(event, now)):
            return False
        known = self._ids.get((event.sender, event.id))
        if known not in (None, event.hash):
            log.warning("%s has signed two messages with the id %s", event.sender, event.id)
        self._ids.add((event.sender, event.id), event.hash)
        self._open.add(event.hash)
        return True

    def done(self, event: Event, now: float) -> None:
        """Records that an event was handled."""
        self._open.discard(event.hash)
        self._state.handled(event, now)


class Work:
    """The work for one job, in a separate task. until is when it is cut off, on the loop's clock; None: never."""

    task: asyncio.Task[None]

    def __init__(self, until: float | None):
        self.limit = asyncio.timeout_at(until)

    def extend(self, until: float | None) -> None:
        """Sets another time to be cut off, because the job has a newer thread."""
        with contextlib.suppress(RuntimeError):  # the work does not run
            self.limit.reschedule(until)


class Desk:
    """The state of one call of serve."""

    def __init__(self, state: State, work: Callable[[Job], Any], concurrency: int, attempts: int):
        self.book, self.inbox = state.book, Inbox(state)
        self.work_slots = FairSlots(concurrency)  # one for each call of work
        self._work, self._attempts = work, attempts
        self._works: dict[JobKey, Work] = {}
        self._owners: dict[JobKey, Run] = {}  # the runs in the newest threads

    async def outcome(
        self, agent: Agent, run: Run, key: JobKey, job: Job, thread: dict[str, Any], left: float | None
    ) -> tuple[str, dict[str, Any]] | None:
        """The outcome of a job after the ACCEPT in a thread. It begins the work if necessary, and waits for it. left is
        how many seconds the thread leaves for it. None: nothing is to be posted in this thread, because the outcome is
        not for it (see Book.accepted), or the work was stopped."""
        what = self.book.accepted(key, thread, agent.client.now())
        if what == "old":
            return None
        newest = not self.book.is_older(key, thread)
        if newest:
            before = self._owners.get(key)
            if before and before is not run and before.in_first():
                before.give_up()
            self._owners[key] = run
        if what == "cancelled":
            return "ERROR", failure(CANCELLED)
        if what == "work":
            until = None if left is None else asyncio.get_running_loop().time() + left
            work = self._works.get(key)
            if work and newest:
                work.extend(until)
            elif not work:
                work = self._works[key] = Work(until)
                work.task = agent.start(self._perform(agent, key, job, work))
            await asyncio.wait([work.task])
        return self.book.outcome(key)

    def ended(self, key: JobKey, thread: dict[str, Any], now: float) -> None:
        """Stops the work of a job if its client has ended the newest thread."""
        if self.book.ended(key, thread, now) and key in self._works:
            self._works.pop(key).task.cancel()

    def leave(self, key: JobKey, run: Run) -> None:
        """A run has ended."""
        if self._owners.get(key) is run:
            del self._owners[key]

    async def _perform(self, agent: Agent, key: JobKey, job: Job, work: Work) -> None:
        caller = Caller()
        agent.queue.earn(key[0])
        try:
            await self.work_slots.acquire(key[0])
            try:
                if not self.book.begin(key, agent.client.now(), self._attempts):
                    log.error("the job %s of %s was interrupted too often, so it gets an ERROR", key[1], key[0])
                    return
                try:
                    value = await caller.call(self._work, job, work.limit)
                    delivery = value if isinstance(value, Delivery) else Delivery(value)
                    self._finish(agent, key, "RESULT", delivery.payload())
                except AgentError as err:
                    self._finish(agent, key, "ERROR", failure(err))
                except asyncio.CancelledError:
                    if agent.ending:
                        self.book.undo(key)
                    raise
            finally:
                caller.after_threads(functools.partial(self.work_slots.release, key[0]))
        finally:
            if self._works.get(key) is work:
                del self._works[key]

    def _finish(self, agent: Agent, key: JobKey, type: str, payload: dict[str, Any]) -> None:
        try:
            payload = json.loads(canonicalize(payload))
        except Refused as err:
            log.error("the outcome of the work is not JSON, so the client gets an ERROR: %s", err)
            type, payload = "ERROR", failure(INTERNAL)
        self.book.finish(key, type, payload, agent.client.now())
