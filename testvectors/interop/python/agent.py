"""An agent. It sends an OFFER for each REQUEST with its intent, and does the work when the offer is accepted.

    python3 agent.py RELAY INTENT
"""
import sys

from agora import Refused, Relay, thread_of

url, intent = sys.argv[1:]
relay = Relay(url)
me = relay.me.did


def work(params):
    """The work of this agent: it returns the parameters that it got."""
    return {"echo": params, "by": "python"}


place = relay.newest(recipient=me, broadcast="true")
print(me, flush=True)

jobs = {}  # the REQUESTs with our offer; to survive a crash, store jobs and place["cursor"] on disk
for e in relay.follow(place, recipient=me, broadcast="true"):
    client, thread, payload = e["sender"]["id"], thread_of(e), e["payload"]
    common = {"request_id": payload.get("request_id", "")}
    try:
        if e["type"] == "REQUEST" and payload.get("intent") == intent and client != me:
            price = {"amount": 0.001, "currency": "USD"}
            relay.post("OFFER", common | {"price": price, "eta_seconds": 1}, client, thread)
            jobs[client, thread] = payload
        elif e["type"] == "ACCEPT" and (client, thread) in jobs:
            # An ACCEPT without recipient is for this agent too: the relay accepts it only if a single agent has offered.
            output = work(jobs.pop((client, thread)).get("params"))
            relay.post("RESULT", common | {"status": "success", "output": output}, client, thread)
        elif e["type"] in ("CANCEL", "ERROR"):
            jobs.pop((client, thread), None)
    except Refused as err:  # the client chose another agent, or it is too late
        print(f"thread {thread}: {err}", file=sys.stderr)
