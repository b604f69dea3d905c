"""The jobs of an agent (RELAYS R-18). A client can continue a job in a new thread, at another relay. The book says what
the agent does then, so that it offers on the same terms and works once. It does no I/O, and the time is an argument, in
seconds since 1970."""
from __future__ import annotations

import hashlib
from typing import Any, Callable, Iterator, Literal

from .envelope import SECOND, encode64, format_time, instant
from .errors import AgentError
from .follow import Event
from .jsontext import canonicalize
from .links import root_of
from .payloads import failure

JobKey = tuple[str, str, str]
"""A job: the did:key of its client, its root, and the digest of its payload."""

Record = dict[str, Any]
"""What the agent keeps of a job. Its members are also in the file of State, with the same names in Go and JavaScript.
They are the members of JobKey; until: when it may be forgotten; offer: the terms of the first OFFER, absent: not known;
accepted; begun: how often the work was begun; over: it has ended, or must not be begun; outcome: the answer, absent:
there is none; thread: the newest one with an ACCEPT; earlier: the hashes of the ACCEPTs in older threads."""

MAX_JOBS = 1024
MAX_OF_CLIENT = 128  # jobs of one client
KEPT_SECONDS = 86400.0  # how long a job is kept after its end
ATTEMPTS = 3  # how often the work of a job is begun
MAX_EARLIER = 6  # ACCEPTs in older threads of a job; with so many, further threads are ignored
NOWHERE = {"home": "", "id": "", "accept": "0" * 64, "first": False}  # the thread of a job without an ACCEPT

INTERRUPTED = AgentError(
    "INTERNAL_ERROR", "interrupted: the agent has ended each time while it worked on this job; send a new REQUEST"
)
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

    def terms(self, key: JobKey) -> dict[str, Any] | None:
        """The terms of the first OFFER of a job; None: there was none."""
        job = self.jobs.get(key)
        return job.get("offer") if job else None

    def has_room(self, key: JobKey, now: float) -> bool:
        """Whether the agent may offer: it knows the job, or can forget another one for it."""
        self.expire(now)
        crowd = self._crowd(key)
        return key in self.jobs or not crowd or self._oldest(crowd) is not None

    def offered(self, key: JobKey, terms: dict[str, Any], until: float, now: float) -> None:
        """Keeps the terms of the first OFFER of a job before it is posted, so that a crash does not lose them. until is
        when the REQUEST expires. Of a later OFFER only the time counts."""
        job = self._job(key, now, now)
        job.setdefault("offer", terms)
        job["until"] = _later(job["until"], until)
        self._save(job, sync=True)

    def accepted(
        self, key: JobKey, thread: dict[str, Any], now: float
    ) -> Literal["work", "answer", "cancelled", "old"]:
        """Keeps an ACCEPT, when it has arrived. thread has the did:key of its home, its id, the hash of its ACCEPT, and
        whether the job's first REQUEST opened it (first). Returns what to do: work, or wait for the work; answer with
        the known outcome; refuse, because the client had cancelled the work; or nothing, because a newer thread has an
        ACCEPT, or too many have.

        The thread of the first REQUEST is older than all others. Of the others nobody knows which one is the newest:
        messages come late, and clocks are set back. So each of them gets the outcome, and the last one to come counts
        as the newest."""
        job = self._job(key, now, now + KEPT_SECONDS)
        if not _same(job["thread"], thread):
            earlier = job.get("earlier", [])
            known = thread["accept"] in earlier
            if job["accepted"] and (thread["first"] or not known and len(earlier) >= MAX_EARLIER):
                return "old"
            if not known:
                if job["accepted"]:
                    job["earlier"] = [*earlier, job["thread"]["accept"]]
                job |= {"thread": thread, "accepted": True}
                if "outcome" not in job and job["begun"] == 0:
                    job["over"] = False  # it was cancelled before the work was begun
                self._save(job)
        if "outcome" in job:
            return "answer"
        return "cancelled" if job["over"] else "work"

    def is_older(self, key: JobKey, thread: dict[str, Any]) -> bool:
        """Whether a newer thread of the job has an ACCEPT."""
        return key in self.jobs and not _same(self.jobs[key]["thread"], thread)

    def begin(self, key: JobKey, now: float, attempts: int) -> int:
        """Counts that the work begins. Returns which attempt this is. 0: it began attempts times already, so the
        outcome is an ERROR, and nothing may run."""
        job = self.jobs.get(key)
        if job is None:
            return 0
        if job["begun"] >= attempts:
            self.finish(key, "ERROR", failure(INTERRUPTED), now)
            return 0
        job["begun"] += 1
        self._save(job, sync=True)
        return int(job["begun"])

    def undo(self, key: JobKey) -> None:
        """Takes back a begin: the agent was stopped in an orderly way while it worked, which does not count as an
        attempt."""
        job = self.jobs.get(key)
        if job is not None and job["begun"] > 0 and not job["over"]:
            job["begun"] -= 1
            self._save(job, sync=True)

    def finish(self, key: JobKey, type: str, payload: dict[str, Any], now: float) -> None:
        """Keeps the outcome of the work: the payload of a RESULT or an ERROR, without request_id."""
        job = self.jobs.get(key)
        if job is not None:  # else it was cancelled, and then forgotten to make room
            job["outcome"] = {"type": type, "payload": payload}
            self._end(job, now, sync=True)

    def outcome(self, key: JobKey) -> tuple[str, dict[str, Any]] | None:
        """The type and the payload of the outcome; None: it is not known."""
        outcome = self.jobs.get(key, {}).get("outcome")
        return (outcome["type"], dict(outcome["payload"])) if outcome else None

    def outcome_at(self, client: str, thread: str, home: str) -> tuple[str, dict[str, Any]] | None:
        """The outcome of the job whose newest thread with an ACCEPT this is; None: it is not known. The agent needs it
        if the REQUEST has expired."""
        for key, job in self.jobs.items():
            if (key[0], job["thread"]["id"], job["thread"]["home"]) == (client, thread, home):
                return self.outcome(key)
        return None

    def ended(self, key: JobKey, thread: dict[str, Any], now: float) -> bool:
        """Records that a thread has ended without the outcome. Returns whether the work must stop: it must if this is
        the newest thread with an ACCEPT. After a stop, a continuation gets an ERROR if the work had begun."""
        job = self.jobs.get(key)
        if job is None or job["over"] or not _same(job["thread"], thread):
            return False
        self._end(job, now)
        return True

    def expire(self, now: float) -> None:
        """Forgets the jobs whose time is over: never one that is accepted and not over."""
        for key, job in list(self.jobs.items()):
            if (job["over"] or not job["accepted"]) and _seconds(job["until"]) <= now:
                self._forget(key)

    def load(self, line: list[Any]) -> None:
        """Takes over a line that write has got."""
        if line[0] == "job":
            self.jobs[key_of_record(line[1])] = line[1]
        else:
            self.jobs.pop(key_of_record(line[1]), None)

    def lines(self) -> Iterator[list[Any]]:
        """The lines from which load makes the same book."""
        return (["job", job] for job in self.jobs.values())

    def _job(self, key: JobKey, now: float, until: float) -> Record:
        """The record of a job. If the book does not have it, the record is made, and kept until a time. This happens,
        for example, if an earlier process without a file made the offer. If the book is full, another job is
        forgotten."""
        self.expire(now)
        if key not in self.jobs:
            oldest = self._oldest(self._crowd(key))
            if oldest is not None:
                self._forget(oldest)
            client, root, payload = key
            self.jobs[key] = {
                "client": client, "root": root, "payload": payload, "until": format_time(until), "accepted": False,
                "begun": 0, "over": False, "thread": NOWHERE,
            }
        return self.jobs[key]

    def _crowd(self, key: JobKey) -> list[JobKey]:
        """The jobs from which one must be forgotten, because the book is full; empty: there is room."""
        own = [other for other in self.jobs if other[0] == key[0]]
        if len(own) >= MAX_OF_CLIENT:
            return own
        return list(self.jobs) if len(self.jobs) >= MAX_JOBS else []

    def _oldest(self, crowd: list[JobKey]) -> JobKey | None:
        """The job that makes room; None: all are accepted and not over. The first without an ACCEPT comes before those
        that are over. RELAYS R-18 keeps these for a day. But then no agent could do more than MAX_JOBS jobs in a day.
        """
        idle = (key for key in crowd if not self.jobs[key]["accepted"])
        over = (key for key in crowd if self.jobs[key]["over"])
        return next(idle, None) or next(over, None)

    def _end(self, job: Record, now: float, sync: bool = False) -> None:
        job["over"] = True
        job["until"] = _later(job["until"], now + KEPT_SECONDS)
        self._save(job, sync)

    def _save(self, job: Record, sync: bool = False) -> None:
        self._write(["job", job], sync)

    def _forget(self, key: JobKey) -> None:
        del self.jobs[key]
        client, root, payload = key
        self._write(["nojob", {"client": client, "root": root, "payload": payload}], False)


def _same(thread: dict[str, Any], other: dict[str, Any]) -> bool:
    return (thread["home"], thread["id"]) == (other["home"], other["id"])


def _seconds(time: str) -> float:
    return instant(time) / SECOND


def _later(time: str, seconds: float) -> str:
    """The later one of two times; one is RFC 3339, the other in seconds since 1970."""
    return time if _seconds(time) >= seconds else format_time(seconds)
