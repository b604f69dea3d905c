"""An agent. It returns the parameters that it gets.

    python3 agent.py RELAY INTENT

It prints its DID, and then for each piece of work a line with "work" and the id of the thread.
"""
import asyncio
import contextlib
import sys

import package
from agora_relay import Client, Identity, Job, Quote

url, intent = sys.argv[1:]


async def work(job: Job):
    print("work", job.thread, flush=True)
    return {"by": "python", "echo": job.params}


async def main():
    me = Identity.generate()
    async with Client(url, me, clock=package.clock) as client:
        print(me.did, flush=True)
        await client.serve(intent, work, quote=lambda job: Quote(0.001, eta_seconds=1))


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
