"""A client. It requests a service, accepts the first offer within its budget, and prints the result.

    python3 client.py RELAY INTENT PARAMS [DID]

RELAY may have several URLs, with spaces between them.
With AGORA_SEAL=1 it seals its messages to the agent DID.
"""
import asyncio
import os
import sys

import package
from agora_relay import Identity, UnknownOutcome, canonicalize, parse

urls, intent, params = sys.argv[1:4]
agent = sys.argv[4] if len(sys.argv) > 4 else None
seal = os.environ.get("AGORA_SEAL") == "1"


async def main():
    async with package.connect(urls, Identity.generate()) as client:
        try:
            call = await client.request(intent, parse(params.encode()), to=agent, max_cost=0.01, seal=seal)
        except UnknownOutcome as err:
            call = err.call  # if the relay has the request, there will be offers
        await call.accept(await call.best("first", seconds=100))
        result = await call.result()
        sys.stdout.buffer.write(canonicalize(result.output))


asyncio.run(main())
