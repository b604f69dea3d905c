"""Makes the package agora_relay of this repository importable, and opens its clients."""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python" / "src"))


def clock():
    """The time in seconds since 1970. With AGORA_CLOCK_OFFSET=seconds it is wrong by that much."""
    return time.time() + float(os.environ.get("AGORA_CLOCK_OFFSET", "0"))


def connect(urls, me):
    """A Client of one relay, or a Network of several: urls has spaces between them. AGORA_SILENCE is how many seconds a
    home may be silent."""
    from agora_relay import Client, Network, Timing

    if " " not in urls:
        return Client(urls, me, clock=clock)
    timing = Timing(silence=float(os.environ.get("AGORA_SILENCE", "30")))
    return Network(urls.split(" "), me, clock=clock, timing=timing)
