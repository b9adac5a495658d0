"""A decoder with all faults that the runner is to notice, one for each first byte."""

from __future__ import annotations

import os
import random as randoms
import time

from waiting import patience

from .runner import HANG as MOST_CPU, Decoder, Difference

GOOD, REFUSED, DIFFERENT, ERROR, CRASH, HANG, MEMORY = range(7)


def _draw(random: randoms.Random) -> bytes:
    kind = CRASH if random.randrange(10) == 0 else random.choice((GOOD, REFUSED))
    return bytes([kind, random.randrange(256)])


def _check(data: bytes) -> bool:
    kind = data[0]
    if kind == DIFFERENT:
        raise Difference("1 and 2")
    if kind == ERROR:
        raise IndexError("no place")
    if kind == CRASH:
        os.abort()
    if kind == HANG:
        began, most = time.process_time(), patience(MOST_CPU)
        while time.process_time() - began < 1.2 * most:
            pass
    if kind == MEMORY:
        bytearray(b"x") * (80 << 20)
    return kind != REFUSED


DECODER = Decoder(name="_toy", draw=_draw, check=_check)
