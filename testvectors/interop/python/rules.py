"""What a relay checks beyond the form and the signature of a message (PROTOCOL §1, §3, §4, §6): whether it is fresh,
meant for this relay, and new, and whether the thread allows it. Clients and agents do not need this. It is here because
a second implementation of the rules finds gaps in the specification.
"""
from agora_relay import Refused, canonicalize, instant, thread_of
from agora_relay.protocol import DEFAULT_TTL

SECOND = 1_000_000_000  # instants are nanoseconds since 1970

PENDING_TIMEOUT, ACTIVE_TIMEOUT, MEMORY = 300 * SECOND, 3600 * SECOND, 1800 * SECOND
MAX_OFFERS = 100
REQUIRED = {"REQUEST": ["intent"], "RESULT": ["status"], "ERROR": ["code", "message"]}


def check_fresh(ts, ttl, now):
    """Refuses a message that is five minutes or more off, or expired."""
    if not now - 300 * SECOND < ts < now + 300 * SECOND:
        raise Refused("STALE_TIMESTAMP", "ts is too far from now")
    if now >= expiry(ts, ttl):
        raise Refused("EXPIRED", "ts + ttl has passed")


def expiry(ts, ttl):
    """The time until which an event is kept: ts + ttl, at most thirty days."""
    return ts + min(int(ttl), 30 * 86400) * SECOND


def check_meant(e, origin, now):
    """Checks what a relay with this origin checks of an envelope at the time now, before it uses its storage."""
    meta = e.get("meta", {})
    check_fresh(instant(e["ts"]), meta.get("ttl", DEFAULT_TTL), now)
    relays = meta.get("relay", origin)
    if origin not in (relays if isinstance(relays, list) else [relays]):
        raise Refused("FORBIDDEN", "meant for another relay")
    auth = e["payload"].get("auth") if e["type"] == "MANIFEST" else None
    if isinstance(auth, dict) and "public_key" in auth:
        key = auth["public_key"]
        if e["sender"]["id"] not in (key, f"did:key:{key}"):
            raise Refused("INVALID_REQUEST", "another's public_key")


class Ledger:
    """The memory of a relay: the messages it has accepted, and the threads of each id, oldest first."""

    def __init__(self):
        self.seen, self.threads = {}, {}

    def take(self, e, now):
        """Accepts a fresh, verified envelope. Returns (state, client, duplicate), or raises Refused."""
        key, text = (e["sender"]["id"], e["id"]), canonicalize(e)
        if key in self.seen and now < self.seen[key][2]:
            if self.seen[key][0] != text:
                raise Refused("DUPLICATE_ID", "another message of the sender has this id")
            return *self.seen[key][1], True
        answer = (None, None) if e["type"] == "MANIFEST" else self.move(e, now)
        self.seen[key] = text, answer, now + MEMORY
        return *answer, False

    def move(self, m, now):
        threads = self.threads.setdefault(thread_of(m), [])
        refusals = []
        for i, t in enumerate(threads):
            if m["type"] == "REQUEST" and m["sender"]["id"] != t["client"]:
                continue  # a REQUEST by another client opens another thread
            try:
                threads[i] = step(t, m, now)
                return threads[i]["state"], t["client"]
            except Refused as err:
                refusals.append(err)
        if refusals:  # raise the one that is nearest to accepting the message
            raise max(refusals, key=lambda err: {"FORBIDDEN": 1, "INVALID_REQUEST": 2}.get(err.code, 3))
        threads.append(step(None, m, now))
        return threads[-1]["state"], threads[-1]["client"]


def step(t, m, now):
    """Returns the thread after a message. t is None if there is no thread yet."""
    kind, sender, to = m["type"], m["sender"]["id"], m.get("recipient", {}).get("id")
    if t and t["deadline"] is not None and now >= t["deadline"]:
        t = t | {"state": "ERROR", "deadline": None}
    if t:
        check_parties(t, kind, sender, to)
    elif kind != "REQUEST":
        raise Refused("THREAD_NOT_FOUND", "a thread begins with a REQUEST")
    for name in REQUIRED.get(kind, []):
        if not isinstance(m["payload"].get(name), str) or not m["payload"][name]:
            raise Refused("INVALID_REQUEST", f"payload.{name}")
    request_id = m["payload"].get("request_id", "")
    if not t:
        return {"client": sender, "state": "PENDING", "request_id": request_id, "named": to, "agent": None,
                "offers": [], "made": 0, "deadline": now + PENDING_TIMEOUT}
    needs_id = kind in ("OFFER", "ACCEPT", "RESULT")
    if kind != "REQUEST" and request_id != t["request_id"] and (needs_id or request_id):
        raise Refused("INVALID_REQUEST", "request_id")

    state = t["state"]
    if kind == "OFFER" and state == "PENDING":
        if t["made"] >= MAX_OFFERS:
            raise Refused("RATE_LIMITED", "too many offers")
        return t | {"offers": t["offers"] + [sender], "made": t["made"] + 1, "deadline": now + PENDING_TIMEOUT}
    if kind == "ACCEPT" and state == "PENDING":
        agents = {to} & set(t["offers"]) if to else set(t["offers"])
        if len(agents) == 1:
            return t | {"state": "ACTIVE", "agent": agents.pop(), "deadline": now + ACTIVE_TIMEOUT}
    if kind == "RESULT" and state == "ACTIVE":
        return t | {"state": "COMPLETED", "deadline": None}
    if kind == "CANCEL" and state in ("PENDING", "ACTIVE"):
        return t | {"state": "ERROR", "deadline": None}
    if kind == "ERROR" and state != "ERROR":
        if sender in (t["client"], t["agent"], t["named"]):
            return t | {"state": "ERROR", "deadline": None}
        return t | {"offers": [agent for agent in t["offers"] if agent != sender]}  # the agent has withdrawn its offer
    raise Refused("INVALID_TRANSITION", f"the thread is {state}")


def check_parties(t, kind, sender, to):
    """Refuses a sender that may never send this type in the thread, and a wrong recipient, whatever the state is."""
    client = sender == t["client"]
    agents = [t["agent"] or t["named"]] if t["agent"] or t["named"] else t["offers"]  # whom the client may address
    if kind == "OFFER":
        may = not client and t["named"] in (None, sender)
    elif kind == "RESULT":
        may = not client and sender in agents
    elif kind == "ERROR":
        may = client or sender in agents or sender in t["offers"]
    else:
        may = client
    if not may:
        raise Refused("FORBIDDEN", "not yours to move")
    if not to or kind == "REQUEST":
        return
    if to not in agents + ([] if t["agent"] else t["offers"]) if client else to != t["client"]:
        raise Refused("INVALID_TRANSITION" if kind == "ACCEPT" else "FORBIDDEN", "not your counterpart")
