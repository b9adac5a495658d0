"""State larger than its memory: rows/s of a table and of 100 rules with 10 million keys on one executor of 1 GB.

    python benchmarks/state.py --json state.json

A standalone Spark with one worker of one core. Ten batches bring every key once; the rates are those of the batches of
random keys after them, with all state in memory and with a bound. Before the last batch the executor is killed:
`after_kill_s` is how long this batch takes, with a new executor that reads the state again. `python_mb` is the most
that the executor's Python processes had in memory, of which shared pages count once; `java_mb` is that of its JVM.
With `--container` the system kills an executor with a bound whose processes take more together, as it does in a
container (Linux, first version of control groups, as root).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from _measure import import_test_support, tell, turns

import_test_support()

from spark_cluster import SparkCluster, spark_cluster  # noqa: E402

from _state_job import FILLS  # noqa: E402

JOB = Path(__file__).with_name("_state_job.py")
ALL = "64g"
"""A bound that keeps all state in memory."""
GROUPS = Path("/sys/fs/cgroup/memory")
MB = 1 << 20


@contextmanager
def container(size: int | None, worker: int) -> Iterator[None]:
    """The processes that the worker starts from now on take at most `size` bytes together."""
    if size is None:
        yield
        return
    group = GROUPS / f"penstock-state-{worker}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(size))
    (group / "cgroup.procs").write_text(str(worker))
    try:
        yield
    finally:
        (GROUPS / "cgroup.procs").write_text(str(worker))


def memory(cluster: SparkCluster) -> dict[str, int]:
    """Megabytes of the executor's processes: its JVM, and its Python processes."""
    found = {"java_mb": 0, "python_mb": 0}
    for executor in cluster.executors(0):
        with suppress(psutil.NoSuchProcess):
            found["java_mb"] += executor.memory_full_info().pss // MB
            for one in executor.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    found["python_mb"] += one.memory_full_info().pss // MB
    return found


def run(job: str, bound: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One job on a new cluster."""
    place = Path(tempfile.mkdtemp(dir=folder))
    size = None if bound == ALL else options.container
    with spark_cluster(place, 1) as cluster, container(size, cluster.worker_pids[0]):
        words = [job, cluster.url, bound, str(folder / "events"), str(place / "checkpoint")]
        words += [str(options.keys), str(options.rows), str(options.batches)]
        batches, most = [], {"java_mb": 0, "python_mb": 0}
        with (
            (place / "said").open("wb") as said,
            subprocess.Popen([sys.executable, str(JOB), *words], stdout=subprocess.PIPE, stderr=said, text=True) as ran,
        ):
            assert ran.stdout
            for line in ran.stdout:
                batches.append(tuple(map(int, line.split())))
                most = {name: max(most[name], now) for name, now in memory(cluster).items()}
                print(job, bound, *batches[-1], most, file=sys.stderr)
                if len(batches) == FILLS + options.batches - 1:
                    for executor in cluster.executors(0):
                        executor.kill()
        if ran.returncode:
            raise RuntimeError(f"{job} failed: {(place / 'said').read_text()[-2000:]}")
    filled, later, (_, after_kill) = batches[:FILLS], batches[FILLS:-1], batches[-1]
    return {
        "case": job,
        "bound": bound,
        "rate_per_s": round(statistics.median(rows / ms * 1000 for rows, ms in later)),
        "fill_per_s": round(sum(rows for rows, _ in filled) / sum(ms for _, ms in filled) * 1000),
        "after_kill_s": round(after_kill / 1000, 1),
        **most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=["table", "rules"])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a batch of random keys (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=6, help="with random keys (default: %(default)s)")
    parser.add_argument(
        "--bounds", nargs="+", default=[ALL, "256m"], help="as for --state-memory (default: %(default)s)"
    )
    parser.add_argument("--container", type=int, metavar="BYTES", help="kill an executor that takes more")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for job in options.jobs:
            runs: dict[str, list[dict[str, Any]]] = {bound: [] for bound in options.bounds}
            for _, bound in turns(list(runs), options.rounds):
                runs[bound].append(run(job, bound, Path(name), options))
            rows += [sorted(each, key=lambda one: one["rate_per_s"])[len(each) // 2] for each in runs.values()]
            for row in rows[-len(runs) :]:
                row["ratio"] = round(row["rate_per_s"] / rows[-len(runs)]["rate_per_s"], 2)
    tell(rows, options.json)


if __name__ == "__main__":
    main()
