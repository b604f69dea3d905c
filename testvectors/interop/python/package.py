"""Makes the package agora_relay of this repository importable, and tells its programs what time it is."""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "sdk" / "python" / "src"))


def clock():
    """The time in seconds since 1970. With AGORA_CLOCK_OFFSET=seconds it is wrong by that much."""
    return time.time() + float(os.environ.get("AGORA_CLOCK_OFFSET", "0"))
