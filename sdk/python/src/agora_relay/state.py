"""What an agent or a reader keeps in one file (RELAYS R-12, R-18): where it is at each relay, which events it has
handled, its jobs, and which relays are caught. Each line of the file is one JSON array; lines are appended."""
from __future__ import annotations

import heapq
import json
import os
from typing import Any, BinaryIO, Iterator

from .book import Book
from .envelope import SECOND, encode64, instant
from .files import Path, replace
from .follow import Event
from .protocol import DEFAULT_TTL

MAX_EVENTS = 65_536  # handled events; the earliest to expire are forgotten first
COMPACT_BYTES = 4 << 20  # a larger file is written anew, if more than half of it is out of date
MAX_KEPT = 30 * 86400.0  # no relay keeps an event longer, in seconds


def expiry_of(event: Event) -> float:
    """When relays forget an event, in seconds since 1970."""
    ttl = float(event.envelope.get("meta", {}).get("ttl", DEFAULT_TTL))
    return instant(event.envelope["ts"]) / SECOND + min(ttl, MAX_KEPT)


class State:
    """The state of one agent or reader, in the file at path. Without path it is in memory only. Use it in one process,
    for one identity. Raises OSError, and ValueError if the file has another form."""

    def __init__(self, path: Path | None = None):
        self.path = None if path is None else os.fspath(path)
        self.book = Book(self._append)
        self.caught: dict[str, str] = {}
        """The relays that are not used any more, by their did:key, with the reason (RELAYS R-17)."""
        self._owner = ""
        self._cursors: dict[str, str] = {}
        self._events: dict[str, float] = {}  # when each handled event expires
        self._expiries: list[tuple[float, str]] = []  # the same, as a heap
        self._places: dict[tuple[str, str], dict[str, Any]] = {}  # by relay and protocol, see place
        self._old: Any = None  # what agora work 0.1.0 had, for the program in Go
        self._file: BinaryIO | None = None
        self._size = self._live = 0
        if self.path is not None:
            self._load(self.path)

    def bind(self, did: str) -> None:
        """Says whose state this is. Raises ValueError if the file belongs to another identity."""
        if self._owner not in ("", did):
            raise ValueError(f"the file {self.path} is the state of {self._owner}; use another file for {did}")
        self._owner = did

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()
        self._file, self.path = None, None

    # --- Relays

    def cursor(self, did: str) -> Cursor:
        """The store for the position of a reader at the relay did."""
        return Cursor(self, did)

    def catch(self, did: str, reason: str) -> None:
        """Records that the relay did is caught."""
        self.caught[did] = reason
        self._append(["caught", did, reason], True)

    def trust(self, did: str) -> None:
        """Lets the relay did be used again, although it was caught."""
        if self.caught.pop(did, None) is not None:
            self._append(["uncaught", did], True)

    def place(self, did: str, protocol: str) -> dict[str, Any] | None:
        """Where the agent can be reached through a protocol of the relay did, as join has kept it."""
        return self._places.get((did, protocol))

    def set_place(self, did: str, protocol: str, place: dict[str, Any] | None) -> None:
        """Records where the agent can be reached. None: the agent has left."""
        self._put_place((did, protocol), place)
        self._append(["joined", did, protocol, place], True)

    def _put_place(self, key: tuple[str, str], place: dict[str, Any] | None) -> None:
        if place is None:
            self._places.pop(key, None)
        else:
            self._places[key] = place

    # --- Events

    def has_handled(self, event: Event, now: float) -> bool:
        """Whether this event, with the same hash, was handled before and has not expired."""
        return self._events.get(_mark(event), 0.0) > now

    def handled(self, event: Event, now: float) -> None:
        """Records that an event was handled, until it expires."""
        mark, expiry = _mark(event), expiry_of(event)
        if expiry > now and mark not in self._events:
            self._add(mark, expiry)
            self._append(["e", mark, int(expiry)], False)
        while self._expiries and (self._expiries[0][0] <= now or len(self._events) > MAX_EVENTS):
            self._events.pop(heapq.heappop(self._expiries)[1], None)

    def _add(self, mark: str, expiry: float) -> None:
        if mark not in self._events:
            self._events[mark] = expiry
            heapq.heappush(self._expiries, (expiry, mark))

    # --- The file

    def _load(self, path: str) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # a crash has cut off the last line
            try:
                self._take(json.loads(line), is_first=number == 1)
            except (ValueError, TypeError, KeyError, IndexError):
                self._file.close()
                raise ValueError(
                    f"line {number} of {path} is not that of an agent's state; move the file away to start anew"
                ) from None
            whole += len(line)
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        self._size = whole
        while len(self._events) > MAX_EVENTS:
            self._events.pop(heapq.heappop(self._expiries)[1], None)

    def _take(self, line: list[Any], *, is_first: bool) -> None:
        kind = line[0]
        if is_first:
            if line[:2] != ["agora-state", 1]:
                raise ValueError("another form")
            self._owner = line[2]
        elif kind == "cursor":
            self._cursors[line[1]] = line[2]
        elif kind == "e":
            self._add(line[1], float(line[2]))
        elif kind in ("job", "nojob"):
            self.book.load(line)
        elif kind == "caught":
            self.caught[line[1]] = line[2]
        elif kind == "uncaught":
            self.caught.pop(line[1], None)
        elif kind == "joined":
            self._put_place((line[1], line[2]), line[3])
        elif kind == "old":
            self._old = line[1]
        else:
            raise ValueError("another kind of line")

    def _lines(self) -> Iterator[list[Any]]:
        yield ["agora-state", 1, self._owner]
        yield from (["caught", did, reason] for did, reason in self.caught.items())
        yield from (["joined", *key, place] for key, place in self._places.items())
        yield from (["e", mark, int(expiry)] for mark, expiry in self._events.items())
        yield from self.book.lines()
        if self._old is not None:
            yield ["old", self._old]
        yield from (["cursor", did, cursor] for did, cursor in self._cursors.items())

    def _append(self, line: list[Any], sync: bool) -> None:
        """Appends a line. With sync, it is on disk when this returns. Otherwise it may get lost in a crash, but only
        together with all later lines."""
        if self._file is None or self.path is None:
            return
        text = _text(line) if self._size else _text(["agora-state", 1, self._owner]) + _text(line)
        self._file.write(text)
        self._size += len(text)
        if sync:
            self._flush(True)
        if self._size > COMPACT_BYTES and self._size > 2 * self._live:
            self._compact(self.path)

    def _flush(self, sync: bool) -> None:
        if self._file:
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())

    def _compact(self, path: str) -> None:
        text = b"".join(map(_text, self._lines()))
        if self._size <= 2 * len(text):
            self._live = len(text)
            return
        replace(path, text)
        if self._file:
            self._file.close()
        self._file = open(path, "ab")
        self._size = self._live = len(text)

    def _save_cursor(self, did: str, cursor: str) -> None:
        self._cursors[did] = cursor
        self._append(["cursor", did, cursor], False)
        self._flush(False)


class Cursor:
    """The position of a reader at one relay, in a State. It is a CursorStore."""

    def __init__(self, state: State, did: str):
        self._state, self._did = state, did

    def load(self) -> str | None:
        """The position that was saved last, or None."""
        return self._state._cursors.get(self._did)

    def save(self, cursor: str) -> None:
        """Saves the position, after all events before it."""
        self._state._save_cursor(self._did, cursor)


def _mark(event: Event) -> str:
    return encode64(bytes.fromhex(event.hash)[:16])


def _text(line: list[Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
