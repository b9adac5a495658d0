"""What an event costs on a cluster, stage by stage: a standalone Spark with one and two workers of one core each.

    python benchmarks/scale.py --json scale.json

Jobs: stateless and tumbling (as in streams.py, from topic to topic) and changes (a change log as Debezium events). Rows
are read from a full topic or log; a rate is that of the last half of them. CPU seconds per million rows are those of
the executors' JVM and Python, of the driver, of the broker and of the node. All parts share this machine's cores, so on
two cores two workers are not twice as fast: `cpu_s_per_million` is what to reckon with (docs/scale.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import _stream_data as data
from _measure import import_test_support, tell, turns
from cdc_source import fill
from penstock.local.services import Services, down, up

import_test_support()

from spark_cluster import spark_cluster  # noqa: E402

JOB = Path(__file__).with_name("_scale_job.py")
CHANGES = "changes"


def used(pid: int) -> dict[str, float]:
    """CPU seconds of a process and of all below it, by program: "java", "python" and others."""
    found: dict[str, float] = {}
    own = psutil.Process(pid)
    for one in (own, *own.children(recursive=True)):
        try:
            times = one.cpu_times()
            program = "java" if one.name() == "java" else "python"
        except psutil.NoSuchProcess:
            continue
        found[program] = found.get(program, 0.0) + times.user + times.system
    return found


def cpu(workers: Iterable[int], driver: int, services: Services) -> dict[str, float]:
    """CPU seconds by stage; all but `services` are process ids."""
    found = {"executors_jvm": 0.0, "executors_python": 0.0}
    for worker in workers:
        each = used(worker)
        found["executors_jvm"] += each.get("java", 0.0)
        found["executors_python"] += each.get("python", 0.0)
    found["driver"] = sum(used(driver).values())
    return found | {name: sum(used(pid).values()) for name, pid in services.pids.items()}


def run(job: str, workers: int, services: Services, topic: str, total: int, folder: Path) -> dict[str, Any]:
    """One job on a new cluster; `total` rows."""
    folder.mkdir()
    results = f"bench-results-{uuid.uuid4().hex[:8]}"
    with spark_cluster(folder, workers) as cluster, data.topics(services.kafka, [results]):
        hosts = services.cql if job == CHANGES else "-"
        places = [services.kafka, topic, results, hosts, str(total), str(folder)]
        command = [sys.executable, str(JOB), job, cluster.url, str(workers), *places]
        samples: list[tuple[int, float, dict[str, float]]] = []
        with (
            (folder / "said").open("wb") as said,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process,
        ):
            assert process.stdout
            pids = cluster.worker_pids
            samples.extend((int(line), time.monotonic(), cpu(pids, process.pid, services)) for line in process.stdout)
        if process.returncode or len(samples) < 3:
            raise RuntimeError(f"{job} failed: {(folder / 'said').read_text()[-2000:]}")
    first = next(one for one in samples if one[0] >= total / 2)
    rows, seconds = samples[-1][0] - first[0], samples[-1][1] - first[1]
    costs = {name: round((samples[-1][2][name] - first[2][name]) / rows * 1e6, 2) for name in first[2]}
    return {"case": job, "workers": workers, "rate_per_s": round(rows / seconds), "cpu_s_per_million": costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=["stateless", "tumbling", CHANGES])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--events", type=int, default=4_000_000, help="of a topic (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a change log (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="users (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            services = up(folder / "services", only=["kafka", "cassandra"] if CHANGES in options.jobs else ["kafka"])
            topic = f"bench-events-{uuid.uuid4().hex[:8]}"
            rows = []
            with data.topics(services.kafka, [topic]):
                data.fill(
                    services.kafka, topic, (data.events(*one, options.keys) for one in data.chunks(options.events))
                )
                if CHANGES in options.jobs:
                    fill(services.cql, options.rows)
                for job in options.jobs:
                    total = options.rows if job == CHANGES else options.events
                    found: dict[int, list[dict[str, Any]]] = {workers: [] for workers in options.workers}
                    for number, workers in turns(options.workers, options.rounds):
                        place = folder / f"{job}-{workers}-{number}"
                        found[workers].append(run(job, workers, services, topic, total, place))
                        print(json.dumps(found[workers][-1]), file=sys.stderr, flush=True)
                    medians = {
                        w: sorted(runs, key=lambda one: one["rate_per_s"])[len(runs) // 2] for w, runs in found.items()
                    }
                    least = medians[min(medians)]["rate_per_s"]
                    rows += [one | {"ratio": round(one["rate_per_s"] / least, 2)} for one in medians.values()]
        finally:
            down(folder / "services")
    tell(rows, options.json)


if __name__ == "__main__":
    main()
