"""What the demo shows while it runs: a live table on a terminal, one line every five seconds elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

PLAIN_EVERY = 5.0
MOST_PARTS = 3
"""Parts whose CPU is shown."""


@dataclass
class Board:
    """The newest numbers; delays are in seconds, `batch` is rows and seconds, `parts` has the state of each part.

    `cpu` has the cores that each part uses, the busiest first; `names` are the labels of input, output, and the
    difference.
    """

    phase: str = ""
    elapsed: float = 0.0
    writes: int = 0
    writes_per_s: float = 0.0
    events: int = 0
    events_per_s: float = 0.0
    delay_p50: float = 0.0
    delay_p99: float = 0.0
    lag: int = 0
    batch: tuple[int, float] | None = None
    retries: int = 0
    parts: dict[str, str] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    names: tuple[str, str, str] = ("writes", "events", "written, not yet seen")


class View:
    """Shows numbers in place if it has a `live` display, else as lines."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live, self._shown, self._phase = console, live, 0.0, ""

    def show(self, board: Board) -> None:
        """Show these numbers now; as a line only if the phase is new, or some seconds after the last line."""
        if self._live:
            self._live.update(as_table(board), refresh=True)
            return
        now = time.monotonic()
        if now - self._shown < PLAIN_EVERY and board.phase == self._phase:
            return
        self._shown, self._phase = now, board.phase
        self.say(_line(board))

    def say(self, line: str) -> None:
        """Add a permanent line."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=self._live is None)


@contextmanager
def view(console: Console) -> Iterator[View]:
    """The view for this console: live on a terminal, else plain lines."""
    if not console.is_terminal:
        yield View(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield View(console, live)


def _line(board: Board) -> str:
    batch = f"{board.batch[0]} rows in {board.batch[1]:.2f} s" if board.batch else "none yet"
    rates = f"{board.writes_per_s:.0f} {board.names[0]}/s, {board.events_per_s:.0f} {board.names[1]}/s"
    delay = f"delay P50 {board.delay_p50:.2f} s P99 {board.delay_p99:.2f} s"
    cpu = f", CPU {cpu_text(board.cpu)}" if board.cpu else ""
    return f"{board.elapsed:6.1f} s  {board.phase}: {rates}, {delay}, lag {board.lag}, batch {batch}{cpu}"


def cpu_text(cpu: Mapping[str, float]) -> str:
    """Cores in use, and of which parts most: `1.9 of 2 cores (cassandra 0.9, spark 0.5, load 0.3)`."""
    parts = [f"{name} {used:.1f}" for name, used in list(cpu.items())[:MOST_PARTS]]
    return f"{sum(cpu.values()):.1f} of {cores()} cores ({', '.join(parts)})"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_table(board: Board) -> Table:
    """The numbers as a table, for a terminal."""
    table = Table(title=f"penstock demo: {board.phase}, {board.elapsed:.0f} s", min_width=60, title_justify="left")
    table.add_column("")
    table.add_column("total", justify="right")
    table.add_column("now", justify="right")
    table.add_row(board.names[0], f"{board.writes}", f"{board.writes_per_s:.0f}/s")
    table.add_row(board.names[1], f"{board.events}", f"{board.events_per_s:.0f}/s")
    table.add_row(board.names[2], f"{board.lag}", "")
    table.add_row("delay P50", "", f"{board.delay_p50:.2f} s")
    table.add_row("delay P99", "", f"{board.delay_p99:.2f} s")
    rows, seconds = board.batch or (0, 0.0)
    table.add_row("last batch", f"{rows} rows", f"{seconds:.2f} s")
    if board.cpu:
        table.add_row("CPU", "", cpu_text(board.cpu))
    if board.retries:
        table.add_row("sent again", f"{board.retries}", "")
    table.add_section()
    for name, state in board.parts.items():
        table.add_row(name, "", state)
    return table
