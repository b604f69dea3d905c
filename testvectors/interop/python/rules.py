"""What relays ask of a message beyond its form and signature: is it fresh, meant for them, new, and its sender's turn
(PROTOCOL §1, §3, §4, §6). Clients and agents need none of this; it is here because a second reading of the rules finds
what the first has left open.
"""
from agora import SECOND, Refused, canonicalize, instant, thread_of

PENDING_TIMEOUT, ACTIVE_TIMEOUT, MEMORY = 300 * SECOND, 3600 * SECOND, 1800 * SECOND
MAX_OFFERS = 100
REQUIRED = {"REQUEST": ["intent"], "RESULT": ["status"], "ERROR": ["code", "message"]}


def check_fresh(ts, ttl, now):
    """Refuses what is more than five minutes off or has expired."""
    if not now - 300 * SECOND < ts < now + 300 * SECOND:
        raise Refused("STALE_TIMESTAMP", "ts is too far from now")
    if now >= expiry(ts, ttl):
        raise Refused("EXPIRED", "ts + ttl has passed")


def expiry(ts, ttl):
    """Until when an event is kept: ts + ttl, thirty days at most."""
    return ts + min(int(ttl), 30 * 86400) * SECOND


def check_meant(e, origin, now):
    """What the relay of that origin asks of an envelope at now, before it looks at what it knows."""
    meta = e.get("meta", {})
    check_fresh(instant(e["ts"]), meta.get("ttl", 300), now)
    relays = meta.get("relay", origin)
    if origin not in (relays if isinstance(relays, list) else [relays]):
        raise Refused("FORBIDDEN", "meant for another relay")
    auth = e["payload"].get("auth") if e["type"] == "MANIFEST" else None
    if isinstance(auth, dict) and "public_key" in auth:
        key = auth["public_key"]
        if e["sender"]["id"] not in (key, f"did:key:{key}"):
            raise Refused("INVALID_REQUEST", "another's public_key")



class Ledger:
    """What a relay knows: the messages it has met, and the threads of each id, the oldest first."""

    def __init__(self):
        self.seen, self.threads = {}, {}

    def take(self, e, now):
        """Takes a fresh, verified envelope: returns (state, client, duplicate), or raises Refused."""
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
                continue  # opens a thread of its own
            try:
                threads[i] = step(t, m, now)
                return threads[i]["state"], t["client"]
            except Refused as err:
                refusals.append(err)
        if refusals:  # the one that is closest to admitting the message
            raise max(refusals, key=lambda err: {"FORBIDDEN": 1, "INVALID_REQUEST": 2}.get(err.code, 3))
        threads.append(step(None, m, now))
        return threads[-1]["state"], threads[-1]["client"]


def step(t, m, now):
    """The thread after a message; t is None where there is no thread yet."""
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
        return t | {"offers": [agent for agent in t["offers"] if agent != sender]}  # an offer taken back, nothing more
    raise Refused("INVALID_TRANSITION", f"the thread is {state}")


def check_parties(t, kind, sender, to):
    """Who could ever send this here, and to whom: others are FORBIDDEN whatever the state is."""
    client = sender == t["client"]
    agents = [t["agent"] or t["named"]] if t["agent"] or t["named"] else t["offers"]  # the client's counterparts
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
