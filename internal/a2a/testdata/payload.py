"""Prints what the A2A SDK for Python verifies of cards: all without what is empty, with sorted names, in ASCII.

Input: cards, one a line.
"""
import json
import sys


def clean(value):
    if isinstance(value, dict):
        return {k: c for k, v in value.items() if (c := clean(v)) is not None} or None
    if isinstance(value, list):
        return [c for v in value if (c := clean(v)) is not None] or None
    return None if value == "" else value


cards = [json.loads(line) for line in sys.stdin]
for card in cards:
    del card["signatures"]
print("\n".join(json.dumps(clean(card), separators=(",", ":"), sort_keys=True) for card in cards), end="")
