"""What the benchmarks share: timing runs in turn, the CPU of a process tree, `penstock run`, the rows of the report."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TICKS = os.sysconf("SC_CLK_TCK")
AS_PEERS = {"compression.type": "lz4"}
"""The options of our sinks whose peers write lz4."""


@dataclass(frozen=True)
class Run:
    """One run: how many rows, in how many seconds of wall clock and of CPU."""

    rows: int
    seconds: float
    cpu: float


@dataclass(frozen=True)
class Row:
    """A line of a report; `ratio` is ours over the peer's rate in the same case, 1.0 for the peer itself."""

    case: str
    subject: str
    rate_per_s: float
    cpu_s_per_million: float
    ratio: float


def import_test_support() -> None:
    """Let this process import the help for tests."""
    support = Path(__file__).parents[1] / "tests/support"
    sys.path.extend(map(str, (support, *support.glob("*/"))))


def tree_cpu(root: int) -> float:
    """CPU seconds used so far by a process and all that descend from it (Linux), the ended ones they waited for too."""
    return sum(own + waited for own, waited in _tree(root).values()) / TICKS


class SampledCpu:
    """CPU of a process and all that descend from it, also of those that end and that nobody waits for, such as Spark's
    Python daemons. Their last moments are not counted: look often."""

    def __init__(self, root: int) -> None:
        self._root, self._used = root, dict[tuple[int, str], int]()

    def look(self) -> float:
        """CPU seconds seen so far."""
        self._used |= {process: own for process, (own, _) in _tree(self._root).items()}
        return sum(self._used.values()) / TICKS


def _tree(root: int) -> dict[tuple[int, str], tuple[int, int]]:
    """The ticks of each process below `root`, by its id and start: its own, and those of children it waited for."""
    parents: dict[int, list[int]] = {}
    fields: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            fields[int(entry.name)] = words
            parents.setdefault(int(words[1]), []).append(int(entry.name))
    found, left = {}, [root]
    while left:
        pid = left.pop()
        if words := fields.get(pid, []):
            own, of_children = (sum(map(int, part)) for part in (words[11:13], words[13:15]))
            found[pid, words[19]] = own, of_children
        left += parents.get(pid, [])
    return found


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which this part of the sorted values lies."""
    return ordered[int(len(ordered) * part)]


@contextmanager
def penstock_run(target: str, folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock run` until the end of the block, with its checkpoints and its log in the folder."""
    command = [sys.executable, "-m", "penstock", "run", target, "--checkpoints", str(folder / "c")]
    environment = os.environ | variables
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def timed(work: Callable[[], int]) -> Run:
    """Run `work`, which returns how many rows it handled."""
    began, cpu = time.perf_counter(), tree_cpu(os.getpid())
    rows = work()
    return Run(rows, time.perf_counter() - began, tree_cpu(os.getpid()) - cpu)


def turns(subjects: Iterable[T], rounds: int) -> Iterator[tuple[int, T]]:
    """The number of each round with each subject in it, in the order given and the other way round in turn."""
    names = list(subjects)
    for number in range(rounds):
        for name in reversed(names) if number % 2 else names:
            yield number, name


def alternate(subjects: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[Run]]:
    """Run every subject once a round; they take turns."""
    runs: dict[str, list[Run]] = {name: [] for name in subjects}
    for _, name in turns(subjects, rounds):
        runs[name].append(timed(subjects[name]))
    return runs


def rows_of(case: str, runs: Mapping[str, list[Run]], peer: str) -> list[Row]:
    """Medians of a case; the ratio is each subject's rate over the peer's."""
    rate = {name: statistics.median(run.rows / run.seconds for run in each) for name, each in runs.items()}
    cpu = {name: statistics.median(run.cpu / run.rows * 1e6 for run in each) for name, each in runs.items()}
    return [
        Row(case, name, round(rate[name], 1), round(cpu[name], 4), round(rate[name] / rate[peer], 3)) for name in runs
    ]


def report(rows: list[Row], file: Path | None) -> None:
    """Print each row as a JSON line, and write them all as one list."""
    tell([asdict(row) for row in rows], file)


def tell(rows: list[dict[str, Any]], file: Path | None) -> None:
    """The same for rows of other columns."""
    for row in rows:
        print(json.dumps(row), flush=True)
    if file:
        file.write_text(json.dumps(rows, indent=1) + "\n")
