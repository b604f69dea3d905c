"""An agent: offers on requests for one intent, and works once its offer is accepted.

    python3 agent.py RELAY INTENT
"""
import sys

from agora import Refused, Relay, thread_of

url, intent = sys.argv[1:]
relay = Relay(url)
me = relay.me.did


def work(params):
    """What this agent is good for: it gives back what it is given."""
    return {"echo": params, "by": "python"}


place = relay.newest(recipient=me, broadcast="true")
print(me, flush=True)

jobs = {}  # what we have offered to do; an agent that must survive a crash keeps it, and place["cursor"], on disk
for e in relay.follow(place, recipient=me, broadcast="true"):
    client, thread, payload = e["sender"]["id"], thread_of(e), e["payload"]
    common = {"request_id": payload.get("request_id", "")}
    try:
        if e["type"] == "REQUEST" and payload.get("intent") == intent and client != me:
            price = {"amount": 0.001, "currency": "USD"}
            relay.post("OFFER", common | {"price": price, "eta_seconds": 1}, client, thread)
            jobs[client, thread] = payload
        elif e["type"] == "ACCEPT" and (client, thread) in jobs:
            # One without recipient is ours too: the relay takes such an ACCEPT only where a single agent has offered.
            output = work(jobs.pop((client, thread)).get("params"))
            relay.post("RESULT", common | {"status": "success", "output": output}, client, thread)
        elif e["type"] in ("CANCEL", "ERROR"):
            jobs.pop((client, thread), None)
    except Refused as err:  # somebody else was chosen, or it is too late
        print(f"thread {thread}: {err}", file=sys.stderr)
