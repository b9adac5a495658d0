"""Whether the cost of reading text from outside grows no faster than the text: the same work at two sizes.

A bound in seconds depends on the machine and on what else it does; how cost grows does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 4
"""The second size over the first. Linear cost grows as much, quadratic cost 16 times."""
MOST = 12
ROUNDS = 5


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """`work(n)` does what is tested at size `n`, in this thread; `size` takes at least a millisecond."""
    small, large = cost(lambda: work(size)), cost(lambda: work(TIMES * size))
    found = f"size {size} costs {small:.4f} s of CPU, {TIMES * size} {large:.4f} s"
    assert large < MOST * small, f"{found}: {large / small:.1f} times"


def cost(work: Callable[[], object]) -> float:
    """CPU seconds that work in this thread takes, the least of some rounds."""
    return min(_once(work) for _ in range(ROUNDS))


def _once(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
