"""Whether the cost of reading text from outside grows no faster than the text: the same work at two sizes.

A bound in seconds depends on the machine and on what else it does; how cost grows does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

TIMES = 4
"""The second size over the first. Linear cost grows as much, quadratic cost 16 times."""
MOST = 12
ROUNDS = 5


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """`work(n)` does what is tested at size `n`, in this thread; `size` takes at least a millisecond."""
    work(size)
    small = large = math.inf
    for _ in range(ROUNDS):
        # The least, as what else the machine does only adds; more rounds are needed only if it did.
        small = min(small, cost(lambda: work(size), 2))
        large = min(large, cost(lambda: work(TIMES * size), 1))
        if large < MOST * small:
            return
    found = f"size {size} costs {small:.4f} s of CPU, {TIMES * size} {large:.4f} s"
    raise AssertionError(f"{found}: {large / small:.1f} times")


def cost(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds that work in this thread takes, the least of some rounds."""
    return min(_once(work) for _ in range(rounds))


def _once(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
