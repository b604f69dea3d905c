"""The tests of agora_relay. They run against the sources of the package."""
import logging
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "sdk/python/src"), str(ROOT / "testvectors/interop/python")]

logging.getLogger("agora_relay").setLevel(logging.CRITICAL + 1)  # the tests make much trouble on purpose
