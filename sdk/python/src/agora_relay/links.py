"""How the messages of a thread name its home, and each other by hash (RELAYS §1, §2)."""
from __future__ import annotations

import hashlib
from typing import Any, Container, Mapping

from .envelope import Envelope, is_home
from .jsontext import canonicalize

Home = dict[str, str]
"""The one relay that decides a thread: its did:key in "did", and in "url" the origin at which it can be reached."""


def content_hash(e: Mapping[str, Any]) -> str:
    """The content hash of a message (PROTOCOL §1), in lower-case hex."""
    return hashlib.sha256(canonicalize(e)).hexdigest()


def home_of(e: Envelope) -> Home | None:
    """The home that a message names; None: it names none."""
    home: Home | None = _of_meta(e, "home")
    return home if is_home(home) else None


def re_of(e: Envelope) -> str | None:
    """The hash of the message that e answers; None: e does not say."""
    value = _of_meta(e, "re")
    return value if isinstance(value, str) else None


def root_of(request: Envelope) -> str:
    """The root of a REQUEST (RELAYS §4): what it continues, or else its own hash."""
    value = _of_meta(request, "continues")
    return value if isinstance(value, str) else content_hash(request)


def _of_meta(e: Mapping[str, Any], name: str) -> Any:
    meta = e.get("meta") if isinstance(e, dict) else None  # post_all also gets what is no message
    return meta.get(name) if isinstance(meta, dict) else None


def flaw(e: Envelope, home: Home | None, answers: Container[str]) -> str:
    """Why a receiver ignores e (RELAYS R-3, R-7); empty: e counts. home is the home of the thread's REQUEST. answers
    are the hashes of the messages that e may answer."""
    if home_of(e) != home:
        return "it does not name the home of its REQUEST"
    answered = re_of(e)
    if answered is None:
        return "it does not name the message that it answers" if home else ""
    return "" if answered in answers else "it answers another message"


def links(home: Home | None, answered: str | None) -> dict[str, Any]:
    """The members of meta with which a message names its home, and by hash the message that it answers. There are none
    if the REQUEST of the thread has no home."""
    return ({"home": home} | ({"re": answered} if answered else {})) if home else {}
