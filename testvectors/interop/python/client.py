"""A client. It requests a service, accepts the first offer within its budget, and prints the result.

    python3 client.py RELAY INTENT PARAMS [AGENT]
"""
import sys
import uuid

from agora import Relay, canonicalize, parse

url, intent, params = sys.argv[1:4]
agent = sys.argv[4] if len(sys.argv) > 4 else None
relay = Relay(url)
me = relay.me.did
budget = 0.01

# The thread and the request have the same id. So messages of agents that send only request_id belong to the thread.
thread = f"req_{uuid.uuid4()}"
request = {"request_id": thread, "intent": intent, "params": parse(params.encode()), "constraints": {"max_cost_usd": budget}}
relay.post("REQUEST", request, agent, thread)

chosen = None  # the agent whose offer was accepted
for e in relay.follow(thread=thread):
    sender, payload = e["sender"]["id"], e["payload"]
    if sender == me or e.get("recipient", {"id": me})["id"] != me:
        continue  # our own message, or one in a copy of our thread
    if e["type"] == "ERROR" and sender == (chosen or agent):
        sys.exit(f"{payload['code']}: {payload['message']}")
    if payload.get("request_id") != thread or agent and sender != agent:
        continue
    if e["type"] == "OFFER" and not chosen and payload.get("price", {}).get("amount", 0) <= budget:
        relay.post("ACCEPT", {"request_id": thread}, sender, thread)
        chosen = sender
    elif e["type"] == "RESULT" and sender == chosen:
        sys.stdout.buffer.write(canonicalize(payload.get("output")))
        break
