"""`penstock status`: the local services, and how each pipeline and connector of this machine gets on."""

from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.cli import services
from penstock.cli.arguments import add_command_config, folder_here, servers
from penstock.cli.output import aligned, in_largest_units, printable
from penstock.console.reading import run_status
from penstock.console.reading.overview import furthest, problems, slowest, unmeasured
from penstock.errors import PenstockError
from penstock.local.services import status
from penstock.local.start import load
from penstock.serve.http_client import MOST, Address, NoHttpAnswer, fetch_blocking
from penstock.watch import run_files
from penstock.watch.run_files import RunFile

PATIENCE = 2.0
"""Seconds in which a command answers."""
ASKED_AT_ONCE = 8
HEAD = ("NAME", "STATE", "ROWS/S", "LAG", "LAG TIME", "DELAY P50", "P95", "P99", "LAST BATCH")
UNKNOWN = "-"

Run = dict[str, Any]


def add(parser: ArgumentParser) -> None:
    services.add_root(parser)
    parser.add_argument(
        "--checkpoints",
        type=folder_here,
        metavar="DIR",
        help="also show the pipelines with checkpoints here that do not run, and how far behind they are",
    )
    parser.add_argument(
        "--servers", type=servers, metavar="HOST:PORT,...", help="the Kafka of these; replaces the Kafka of --root"
    )
    add_command_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    """Exit code 1 if a service does not run, or a pipeline or connector failed, waits, or is behind."""
    local = status(args.root)
    runs = [*_running(), *_stopped(args)]
    known_problems = problems(runs)
    if args.json:
        service_records = [asdict(service) | {"log": str(service.log)} for service in local]
        print(json.dumps({"services": service_records, "runs": runs, "problems": known_problems}))
    else:
        for service in local:
            print(*services.lines(service), sep="\n")
        _print(runs, known_problems)
    # Where none was ever started, nobody misses a service.
    expected = [] if runs and not load(args.root) else local
    return 0 if all(service.state == "running" for service in expected) and not known_problems else 1


def _running() -> list[Run]:
    """What the commands of this machine say of themselves."""
    files = [file for file in run_files.running() if file.kind in ("run", "connect")]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(_asked, files))


def _asked(file: RunFile) -> Run:
    about: Run = {"id": file.name, "url": file.url, "reachable": True, "problem": ""}
    try:
        answer = run_status.taken(_fetched(file.url))
        if answer is None:
            raise NoHttpAnswer("its answer is not a status")
    except PenstockError as error:
        about |= {"reachable": False, "problem": printable(error.what)}
        empty: Run = {"queries": [], "errors": [], "state": "failed" if not file.url else "starting"}
        return empty | {"name": file.name, "kind": file.kind, "command": file.command, "pid": file.pid} | about
    return answer | about


def _fetched(url: str) -> Any:
    """The status of a command; raises PenstockError."""
    answer = fetch_blocking(Address.of(url, "run file"), "/status", patience=PATIENCE, most=MOST)
    if answer.status != 200:
        raise NoHttpAnswer(f"/status is answered with HTTP {answer.status}", where=url)
    return answer.parsed(url)


def _stopped(args: Namespace) -> list[Run]:
    """The pipelines with a checkpoint that no process runs."""
    if args.checkpoints is None:
        return []
    if not args.checkpoints.is_dir():
        raise PenstockError(
            f"there is no folder {args.checkpoints}", next="give the DIR of `penstock run --checkpoints DIR`"
        )
    # Imported here: they load Spark's types and the Kafka client.
    from penstock.cli.command_config import security
    from penstock.console.reading.kafka_clusters import KafkaClusters
    from penstock.console.reading.stopped_pipelines import StoppedPipelines
    from penstock.kafka.brokers import Brokers

    async def stopped_runs() -> list[Run]:
        protected = security(args)
        address = args.servers or _local_kafka(args.root)
        kafkas = KafkaClusters(Brokers(address, protected) if address else None, None, list)
        stopped = StoppedPipelines(kafkas.ends)
        try:
            await stopped.refresh([args.checkpoints])
        finally:
            await kafkas.close()
        if stopped.problem:
            raise PenstockError(stopped.problem, where=str(args.checkpoints))
        return stopped.pipelines

    runs = asyncio.run(stopped_runs())
    for query in (query for run in runs for query in run["queries"]):
        _add_time(query)
    return runs


def _local_kafka(root: Path) -> str | None:
    try:
        return services.kafka(root)
    except PenstockError:
        return None


def _add_time(query: Run) -> None:
    """What a stopped query has not read is at most as old as its last batch."""
    if query.get("last_commit") is None:
        return
    passed = (datetime.now(UTC) - datetime.fromisoformat(query["last_commit"])).total_seconds()
    for source in query["sources"]:
        if source.get("lag_records"):
            source.setdefault("lag_seconds", round(max(0.0, passed), 1))


def _print(runs: Sequence[Run], known_problems: Sequence[Mapping[str, Any]]) -> None:
    if not runs:
        return
    rows = [HEAD, *(row for run in runs for row in _rows(run))]
    print("", *aligned(rows), sep="\n")
    for line in _unmeasured(runs):
        print(printable(line))
    for problem in known_problems:
        where = f" ({problem['where']})" if problem["where"] else ""
        print(printable(f"{problem['severity']}: {problem['what']}{where}. Next: {problem['next']}"))
    for run in runs:
        for line in _last_error(run):
            print(printable(line))


def _rows(run: Run) -> Iterator[tuple[str, ...]]:
    for connector in run.get("connectors", ()):
        tasks = [task["state"].lower() for task in connector.get("tasks", ())]
        state = str(connector.get("state", "")).lower()
        yield printable(connector["name"]), f"{state}, tasks {', '.join(tasks) or 'none'}", *[UNKNOWN] * (len(HEAD) - 2)
    for query in run["queries"]:
        yield _row(query)
    if not run["queries"]:
        state = run["state"] if run["reachable"] else "no answer"
        yield printable(run["name"]), state, *[UNKNOWN] * (len(HEAD) - 2)


def _row(query: Run) -> tuple[str, ...]:
    records = [source["lag_records"] for source in query.get("sources", ()) if source.get("lag_records") is not None]
    behind = furthest(query)
    return (
        printable(query["name"]),
        query["state"],
        _number(query.get("rows_per_second")),
        f"{sum(records):g}" if records else UNKNOWN,
        f"{behind[0]:.1f} s" if behind else UNKNOWN,
        *(_slowest(query, of) for of in ("p50", "p95", "p99")),
        _ago(query.get("last_commit")),
    )


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def _slowest(query: Run, percentile: str) -> str:
    """The percentile of the slowest sink."""
    delay = slowest(query, percentile)
    return f"{delay[0]:.2f} s" if delay else UNKNOWN


def _unmeasured(runs: Sequence[Run]) -> Iterator[str]:
    """Why the delays of queries that run are not known."""
    for query in (query for run in runs for query in run["queries"] if query["state"] == "running"):
        if why := unmeasured(query):
            yield f"the delay of {query['name']} is not known: {why}"


def _ago(iso: str | None) -> str:
    if iso is None:
        return UNKNOWN
    try:
        passed = datetime.now(UTC) - datetime.fromisoformat(iso)
    except (ValueError, TypeError):
        return UNKNOWN
    return f"{in_largest_units(max(timedelta(0), passed))} ago"


def _last_error(run: Run) -> Iterator[str]:
    """The newest error of a run, unless it is of a query that has failed, which is shown already."""
    for error in run["errors"][-1:]:
        if run["state"] not in ("failed", "stopped") and error.get("what"):
            step = f". Next: {error['next']}" if error.get("next") else ""
            yield f"last error of {error.get('query') or run['name']}, {_ago(error.get('at'))}: {error['what']}{step}"
