"""An agent. It returns the parameters that it gets.

    python3 agent.py RELAY INTENT

RELAY may have several URLs, with spaces between them. It prints its DID, and then for each piece of work a line with
"work" and the id of the thread. With AGORA_HOLD, the work ends when there is a file with this name.
"""
import asyncio
import contextlib
import os
import sys

import package
from agora_relay import Identity, Job, Quote

urls, intent = sys.argv[1:]
hold = os.environ.get("AGORA_HOLD")


async def work(job: Job):
    print("work", job.thread, flush=True)
    while hold and not os.path.exists(hold):
        await asyncio.sleep(0.02)
    return {"by": "python", "echo": job.params}


async def main():
    me = Identity.generate()
    async with package.connect(urls, me) as client:
        print(me.did, flush=True)
        quote = Quote(0.001, eta_seconds=1)
        await client.serve(intent, work, quote=lambda job: quote, manifest={"name": "python"})


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
