"""The jobs of an agent (RELAYS R-18). A client can continue a job in a new thread, at another relay. The book says what
the agent does then, so that it offers on the same terms and works once. It does no I/O, and the time is an argument, in
seconds since 1970."""
from __future__ import annotations

import hashlib
from typing import Any, Callable, Iterator, Literal

from .envelope import encode64
from .errors import AgentError
from .follow import Event
from .jsontext import canonicalize
from .links import root_of
from .payloads import failure

JobKey = tuple[str, str, str]
"""A job: the did:key of its client, its root, and the digest of its payload."""

Record = dict[str, Any]
"""What the agent keeps of a job. The members are those of a line in the file of State."""

MAX_JOBS = 1024
MAX_OF_CLIENT = 128  # jobs of one client
KEPT_SECONDS = 86400.0  # how long a job is kept after its end
ATTEMPTS = 3  # how often the work of a job is begun

INTERRUPTED = AgentError("INTERNAL_ERROR", "interrupted: the agent has ended each time while it worked on this job")
CANCELLED = AgentError("UNAVAILABLE", "the job was cancelled after the work had begun; send a new REQUEST")


def job_key(request: Event) -> JobKey:
    """The job of a REQUEST whose payload is open (RELAYS §4)."""
    payload = {name: value for name, value in request.payload.items() if name != "request_id"}
    return request.sender, root_of(request.envelope), encode64(hashlib.sha256(canonicalize(payload)).digest())


def key_of_record(job: Record) -> JobKey:
    """The job that a record is about."""
    return job["client"], job["root"], job["payload"]


class Book:
    """The jobs of one agent. write gets a line of the file of State for each change, and whether the line must be on
    disk when write returns."""

    def __init__(self, write: Callable[[list[Any], bool], None] = lambda line, sync: None):
        self.jobs: dict[JobKey, Record] = {}  # in the order in which they were offered first
        self._write = write
        self._running: set[JobKey] = set()  # the work runs in this process
        self._arrivals: dict[JobKey, int] = {}  # when the ACCEPT of the newest thread has arrived

    def terms(self, key: JobKey) -> dict[str, Any] | None:
        """The terms of the first OFFER of a job; None: there was none."""
        job = self.jobs.get(key)
        return job.get("offer") if job else None

    def is_accepted(self, key: JobKey) -> bool:
        """Whether a job has an ACCEPT."""
        return key in self.jobs and bool(self.jobs[key]["accepted"])

    def has_room(self, key: JobKey, now: float) -> bool:
        """Whether the agent may offer: it knows the job, or can forget another one for it."""
        self.expire(now)
        return key in self.jobs or self._victim(key) is not None

    def offered(self, key: JobKey, terms: dict[str, Any], until: float, now: float) -> bool:
        """Keeps the terms of an OFFER before it is posted. until is when the REQUEST expires. Returns False if there
        is no room, and then the agent must not offer."""
        job = self._job(key, now)
        if job is None:
            return False
        job["until"] = max(job["until"], until)
        if not job["accepted"]:
            job["offer"] = terms
        self._save(job)
        return True

    def accepted(self, key: JobKey, thread: dict[str, str], now: float, arrival: int = 0) -> Literal[
        "work", "answer", "wait", "full"
    ]:
        """What to do after an ACCEPT: begin the work; post the known outcome; wait, because the work runs, or because
        another thread is newer; or refuse, because there is no room for a job that is not known. arrival orders the
        ACCEPTs."""
        job = self._job(key, now)
        if job is None:
            return "full"
        if self.is_newest(key, thread):
            arrival = max(arrival, self._arrivals.get(key, 0))
        if arrival >= self._arrivals.get(key, 0):
            self._arrivals[key] = arrival
            job |= {"thread": thread, "accepted": True}
            self._keep(job, now)
        if "outcome" in job:
            return "answer"
        if key in self._running or not self.is_newest(key, thread):
            return "wait"
        self._running.add(key)
        return "work"

    def is_newest(self, key: JobKey, thread: dict[str, str]) -> bool:
        """Whether a thread is the newest one of its job with an ACCEPT, so that the outcome belongs there."""
        newest = self.jobs.get(key, {}).get("thread")
        return newest is not None and (newest["home"], newest["id"]) == (thread["home"], thread["id"])

    def begin(self, key: JobKey, now: float, attempts: int) -> int:
        """Counts that the work begins. Returns which attempt this is. 0: it began attempts times already, so the
        outcome is an ERROR, and nothing may run."""
        job = self.jobs[key]
        if job["begun"] >= attempts:
            self.finish(key, "ERROR", failure(INTERRUPTED), now)
            return 0
        job["begun"] += 1
        self._keep(job, now, sync=True)
        return int(job["begun"])

    def finish(self, key: JobKey, type: str, payload: dict[str, Any], now: float) -> None:
        """Keeps the outcome of the work: the payload of a RESULT or an ERROR, without request_id."""
        job = self.jobs[key]
        job["outcome"] = {"type": type, "payload": payload}
        self._running.discard(key)
        self._keep(job, now, sync=True)

    def outcome(self, key: JobKey) -> tuple[str, dict[str, Any]] | None:
        """The type and the payload of the outcome; None: it is not known."""
        outcome = self.jobs.get(key, {}).get("outcome")
        return (outcome["type"], dict(outcome["payload"])) if outcome else None

    def ended(self, key: JobKey, thread: dict[str, str], now: float) -> bool:
        """Records that a thread has ended without the outcome. Returns whether the work must stop: it must if this is
        the newest thread with an ACCEPT. After a stop, a continuation gets an ERROR if the work had begun."""
        if not self.is_newest(key, thread):
            return False
        job = self.jobs[key]
        del job["thread"]
        self._running.discard(key)
        if job["begun"] and "outcome" not in job:
            self.finish(key, "ERROR", failure(CANCELLED), now)
        else:
            self._keep(job, now)
        return True

    def expire(self, now: float) -> None:
        """Forgets the jobs whose time is over."""
        for key in [key for key, job in self.jobs.items() if job["until"] <= now and key not in self._running]:
            self._forget(key)

    def stopped(self, key: JobKey) -> None:
        """The work does not run any more, and has no outcome."""
        self._running.discard(key)

    def load(self, line: list[Any]) -> None:
        """Takes over a line that write has got."""
        if line[0] == "job":
            self.jobs[key_of_record(line[1])] = line[1]
        else:
            self.jobs.pop((line[1], line[2], line[3]), None)

    def lines(self) -> Iterator[list[Any]]:
        """The lines from which load makes the same book."""
        return (["job", job] for job in self.jobs.values())

    def _job(self, key: JobKey, now: float) -> Record | None:
        """The record of a job, which is made if necessary; None: there is no room."""
        self.expire(now)
        if key not in self.jobs:
            victim = self._victim(key)
            if victim is None:
                return None
            if victim != key:
                self._forget(victim)
            client, root, payload = key
            self.jobs[key] = {
                "client": client, "root": root, "payload": payload, "until": now, "accepted": False, "begun": 0,
            }
        return self.jobs[key]

    def _victim(self, key: JobKey) -> JobKey | None:
        """The job to forget to make room for a new one; key: none needs to go; None: all are accepted."""
        own = [other for other in self.jobs if other[0] == key[0]]
        if len(own) < MAX_OF_CLIENT and len(self.jobs) < MAX_JOBS:
            return key
        candidates = own if len(own) >= MAX_OF_CLIENT else list(self.jobs)
        return next((other for other in candidates if not self.jobs[other]["accepted"]), None)

    def _keep(self, job: Record, now: float, *, sync: bool = False) -> None:
        job["until"] = max(job["until"], now + KEPT_SECONDS)
        self._save(job, sync)

    def _save(self, job: Record, sync: bool = False) -> None:
        self._write(["job", job], sync)

    def _forget(self, key: JobKey) -> None:
        del self.jobs[key]
        self._arrivals.pop(key, None)
        self._write(["nojob", *key], False)
