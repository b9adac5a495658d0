"""What the first page shows: all runs, one graph of them with rates, and what is wrong, worst first.

Wrong is what has failed, is behind its target, waits, or is stopped with records left; each has a next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.watch import graph as graphs

if TYPE_CHECKING:
    # `penstock status` uses this module without the extra that asks other servers.
    from penstock.console.reading.run_polling import Run

Json = dict[str, Any]
KafkaOf = Callable[[str | None], str | None]
"""The name of the Kafka at an address."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def identified(runs: Iterable[Run]) -> dict[str, Run]:
    """The runs by id, which stands in addresses: the name, with the address if several have the name."""
    some = list(runs)
    count = Counter(run.name for run in some)
    return {run.name if count[run.name] == 1 else f"{run.name}@{run.address.url}": run for run in some}


def run_as_json(id: str, run: Run, *, history: bool = False) -> Json:
    """A run as the API shows it, by default without the history of its batches."""
    status = run.whole() if history else run.status
    shown: Json = dict(status or _unknown(run))
    if run.ended is not None and shown["state"] != "failed":
        shown["state"] = "stopped"
    shown |= {"id": id, "url": run.address.url, "reachable": run.reachable, "problem": run.problem}
    return shown


def _unknown(run: Run) -> Json:
    """A run that has not answered yet, as far as its run file describes it."""
    file = run.file
    about = {"kind": file.kind, "command": file.command, "pid": file.pid} if file else {"kind": "run"}
    graph: Json = {"nodes": [], "edges": []}
    return about | {"name": run.name, "state": "starting", "queries": [], "errors": [], "graph": graph}


def overview(
    runs: Mapping[str, Run],
    stopped: Sequence[Json],
    about: Json,
    connectors: Sequence[Json] = (),
    kafka_of: KafkaOf = lambda address: None,
) -> Json:
    """The overview; `stopped` are pipelines that do not run, `about` is what the console says of itself.

    `connectors` are those of Connect clusters, as their page has them; `kafka_of` names the Kafka at an address.
    """
    shown = [run_as_json(id, run) for id, run in runs.items()] + list(stopped)
    ids = ids_of(shown, kafka_of)
    shown = [renamed(run, ids[run["id"]]) for run in shown]
    targets = [
        {"id": id, "url": run.address.url, "reachable": run.reachable, "problem": run.problem}
        for id, run in runs.items()
        if run.file is None
    ]
    return {
        "now": now(),
        **about,
        "targets": targets,
        "runs": shown,
        "graph": graph(shown, runs, kafka_of),
        "problems": problems(shown, connectors),
    }


def is_topic(node: Mapping[str, Any]) -> bool:
    return str(node["id"]).startswith("topic:")


def ids_of(shown: Sequence[Json], kafka_of: KafkaOf) -> dict[str, dict[str, str]]:
    """The ids in the graph of all runs by run and by the run's own ids.

    Topics and tables of one name on several clusters are several nodes, and so are queries and states of one name in
    several runs.
    """
    places = {run["id"]: {node["id"]: _place(node, run["id"], kafka_of) for node in _nodes(run)} for run in shown}
    ids = graphs.ids_apart(place for own in places.values() for place in own.values())
    return {run: {old: ids[place] for old, place in own.items()} for run, own in places.items()}


def _nodes(run: Json) -> list[Json]:
    nodes: list[Json] = run["graph"]["nodes"]
    return nodes


def _place(node: Json, run: str, kafka_of: KafkaOf) -> graphs.Place:
    address = node.get("address")
    id = node["id"].removesuffix(f"@{address}") if address else node["id"]
    if node["kind"] in (graphs.QUERY, graphs.STATE):
        return id, run
    return id, (kafka_of(address) or address) if is_topic(node) and address else address


def renamed(run: Json, ids: Mapping[str, str]) -> Json:
    """The run with other ids of the nodes of its graph."""
    if all(old == new for old, new in ids.items()):
        return run

    def moved(of: Json, *fields: str) -> Json:
        return of | {name: ids.get(of[name], of[name]) for name in fields if of.get(name)}

    def with_parts(query: Json) -> Json:
        parts = {
            part: [moved(endpoint, "node") for endpoint in query[part]]
            for part in ("sources", "sinks")
            if part in query
        }
        return moved(query, "node") | parts

    queries = [with_parts(query) for query in run["queries"]]
    nodes = [moved(node, "id") for node in _nodes(run)]
    edges = [moved(edge, "source", "target") for edge in run["graph"]["edges"]]
    return run | {"queries": queries, "graph": {"nodes": nodes, "edges": edges}}


def graph(shown: Sequence[Json], runs: Mapping[str, Run], kafka_of: KafkaOf) -> Json:
    """The graphs of all runs as one; an edge has the rows a second of the source or sink that it stands for.

    The edges of a sink with several topics have none: only the sink's sum is known, which is the query's.
    A topic has its Kafka; None if the console does not read that, or does not know which it is.
    """
    nodes: dict[str, Json] = {}
    edges: dict[tuple[str, str], Json] = {}
    for run in shown:
        for node in _nodes(run):
            more = {"kafka": kafka_of(node.get("address"))} if is_topic(node) else {}
            nodes.setdefault(node["id"], node | more)
        for edge in run["graph"]["edges"]:
            edges.setdefault((edge["source"], edge["target"]), dict(edge))
        if run["id"] in runs:
            _add_rates(run, runs[run["id"]], edges)
    return {"nodes": list(nodes.values()), "edges": list(edges.values())}


def _add_rates(shown: Json, run: Run, edges: Mapping[tuple[str, str], Json]) -> None:
    if not run.reachable:
        return
    for query in shown["queries"]:
        for side in ("source", "sink"):
            for endpoint in query.get(f"{side}s", ()):
                rate = run.rates.get((query["name"], side, endpoint["name"]))
                between = (endpoint.get("node", ""), query.get("node", ""))
                edge = edges.get(between if side == "source" else between[::-1])
                if edge is not None and rate is not None and not endpoint.get("other_nodes"):
                    edge["rate"] = round(edge.get("rate", 0.0) + rate, 3)


# What is wrong.

STOPPED_AGE = 60.0
"""Seconds after which the position of a stopped query is reported: of a change log it is only known how old it is."""
COUNTED = ("records_total", "dead_letters_total")
"""What a worker counts of each task."""
SEVERITIES = ("failed", "behind", "waiting", "stopped")


def problems(runs: Sequence[Mapping[str, Any]], connectors: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
    """The problems of runs and connectors: the worst first, then those that are furthest behind."""
    all_problems = [problem for run in runs for problem in _of_run(run)]
    # A connector of `penstock connect` may be known from its run, too: the name of the run is the worker's address. A
    # connector of the same name in another group is another one.
    known = {(run.get("name"), problem["what"]) for run in runs for problem in _of_run(run)}
    for connector in connectors:
        own = workers(connector)
        all_problems += [
            problem
            for problem in _of_cluster(connector)
            if not any((worker, problem["what"]) in known for worker in own)
        ]
    all_problems.sort(key=lambda problem: (SEVERITIES.index(problem["severity"]), -problem.pop("_weight")))
    return all_problems


def of_checkpoints(why: str, where: str) -> Json:
    """The problem of checkpoints that cannot be read: pipelines that do not run may be missing."""
    what, step = f"the checkpoints cannot be read: {why}", "repair or move the folder; penstock checkpoints shows each"
    return {"severity": "failed", "what": what, "where": where, "next": step, "run": "", "query": None, "cluster": None}


def _of_run(run: Mapping[str, Any]) -> Iterator[Json]:
    if not run["reachable"] and run["state"] not in ("stopped", "failed"):
        yield _problem(
            "failed", run, None, f"{run['name']} does not answer: {run['problem']}", run["url"], _restart(run)
        )
        return
    queries = run["queries"]
    if run["state"] == "stopped" and run["problem"]:
        yield _problem("stopped", run, None, f"{run['name']}: {run['problem']}", run["url"] or "", _restart(run))
    if run["state"] == "failed" and not any(query["state"] == "failed" for query in queries):
        yield _problem("failed", run, None, f"{run['name']} has failed", run["url"], _restart(run), run)
    for query in queries:
        yield from _of_query(run, query)
    if run["state"] == "waiting" and not any(query["state"] in ("waiting", "failed") for query in queries):
        what = f"{run['name']} waits for {run.get('waits_for') or 'a server'}"
        yield _problem("waiting", run, None, what, run["url"], "start what it waits for; it goes on by itself")
    for connector in run.get("connectors", ()):
        yield from _of_connector(run, connector)
        yield from _of_letters(run, connector)


def _of_query(run: Mapping[str, Any], query: Mapping[str, Any]) -> Iterator[Json]:
    name, state = query["name"], query["state"]
    behind = furthest(query)
    lag, place = behind if behind else (0.0, "")
    records = sum(source.get("lag_records", 0) for source in query.get("sources", ()))
    if state == "failed":
        error: Mapping[str, Any] = next(
            (error for error in reversed(run["errors"]) if error.get("query") in (name, "", None)), {}
        )
        what = query.get("problem") or error.get("what") or "the query failed"
        next_step = query.get("next") or error.get("next") or "see its errors, then start the pipeline again"
        yield _problem("failed", run, name, f"{name} failed: {what}", error.get("where", ""), next_step)
    elif state == "stopped" or run["state"] == "stopped":
        if records or lag > STOPPED_AGE:
            behind_by = f"{records:,.0f} records behind" if records else f"its position is {lag:,.0f} s old"
            yield _problem("stopped", run, name, f"{name} is stopped, {behind_by}", place, _restart(run), weight=lag)
    elif (left := _short_retention(query)) is not None:
        what = f"{name} is {lag:.1f} s behind, and its topic deletes what it has not read in {left:.0f} s"
        step = "raise the topic's retention.ms now, then see the phases of its batches"
        yield _problem("behind", run, name, what, place, step, weight=lag)
    elif lag > query.get("target_seconds", float("inf")):
        what = f"{name} is {lag:.1f} s behind, its target is {query['target_seconds']:g} s"
        step = "see the phases of its batches; give it more cores or partitions, or find what its sink waits for"
        yield _problem("behind", run, name, what, place, step, weight=lag)
    elif state == "waiting":
        what = f"{name} waits for {query.get('waits_for') or 'a server'}"
        yield _problem("waiting", run, name, what, place, query.get("next") or "start what it waits for", weight=lag)
    elif (late := slowest(query)) is not None and late[0] > query.get("target_seconds", float("inf")):
        what = f"the delay of {name} is {late[0]:.1f} s at P99, its target is {query['target_seconds']:g} s"
        step = "see the phases of its batches; if the events themselves are old, raise the pipeline's target"
        yield _problem("behind", run, name, what, late[1], step, weight=late[0])


def _of_connector(run: Mapping[str, Any], connector: Mapping[str, Any]) -> Iterator[Json]:
    for task in connector.get("tasks", ()):
        if task["state"] == "FAILED":
            why = cause(task.get("trace", ""))
            what = f"task {task['id']:g} of connector {connector['name']} failed{why and ': '}{why}"
            yield _problem("failed", run, connector["name"], what, run["url"], "see its trace, then restart the task")


def _of_letters(run: Mapping[str, Any], connector: Mapping[str, Any]) -> Iterator[Json]:
    for task in connector.get("tasks", ()):
        if is_mostly_bad(task):
            bad, records = task["dead_letters_total"], task["records_total"]
            who = f"task {task['id']:g} of connector {connector['name']}"
            what = f"{who} has left out {bad:,.0f} of {records:,.0f} records"
            step = "see the reasons in its dead letters or its worker's log; correct the converter or the table"
            yield _problem("failed", run, connector["name"], what, run["url"], step)


def is_mostly_bad(task: Mapping[str, Any]) -> bool:
    """Whether more than half of the records of a task were left out: it runs, and does not do what it is for."""
    return bool(2 * task.get("dead_letters_total", 0) > task.get("records_total", float("inf")))


def with_counts(connector: Json, runs: Iterable[Json]) -> Json:
    """The connector of a Connect cluster with the records of its tasks, if their workers are known as runs."""
    known = {
        (run["name"], known_connector["name"], task["id"]): {name: task[name] for name in COUNTED if name in task}
        for run in runs
        for known_connector in run.get("connectors", ())
        for task in known_connector.get("tasks", ())
    }

    def counted(task: Json) -> Json:
        counts = known.get((task["worker"], connector["name"], task["id"]), {})
        return task | counts | ({"mostly_bad": is_mostly_bad(counts)} if counts else {})

    return connector | {"tasks": [counted(task) for task in connector["tasks"]]}


def _of_cluster(connector: Mapping[str, Any]) -> Iterator[Json]:
    cluster = {"id": "", "url": connector["url"], "cluster": connector["cluster"]}
    if connector["name"] is None:
        what = f"Kafka Connect does not answer: {connector['error']}"
        yield _problem("failed", cluster, None, what, connector["url"], "check --connect, and that Kafka Connect runs")
        return
    if connector["state"] == "FAILED":
        why = cause(connector["trace"])
        what = f"connector {connector['name']} failed{why and ': '}{why}"
        yield _problem("failed", cluster, connector["name"], what, connector["url"], "see its trace, then restart it")
    yield from _of_connector(cluster, connector)


def workers(connector: Mapping[str, Any]) -> set[str]:
    """The addresses of the workers of a connector, which are the names of their runs."""
    own = [connector.get("worker", ""), *(task.get("worker", "") for task in connector.get("tasks", ()))]
    return {urlsplit(connector["url"]).netloc, *filter(None, own)}


def cause(trace: str) -> str:
    """The line of a trace that says why: of Java the last cause or the first line, of Python the last one."""
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if lines and lines[0].startswith("Traceback"):
        return lines[-1]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines[:1] or [""])[-1]


def _short_retention(query: Mapping[str, Any]) -> float | None:
    """The seconds in which a source deletes records that are not read, if it is more than half way there."""
    sources = query.get("sources", ())
    known = [source for source in sources if source.get("lag_records") and "retention_left_seconds" in source]
    short = [source for source in known if source.get("lag_seconds", 0.0) > source["retention_left_seconds"]]
    return min((source["retention_left_seconds"] for source in short), default=None)


def furthest(query: Mapping[str, Any]) -> tuple[float, str] | None:
    """The longest lag of a query's sources in seconds, and the source; None if no lag is known."""
    known = [(source["lag_seconds"], source["name"]) for source in query.get("sources", ()) if "lag_seconds" in source]
    return max(known, default=None)


def slowest(query: Mapping[str, Any], percentile: str = "p99") -> tuple[float, str] | None:
    """The percentile of the delay of a query's slowest sink, and the sink; None if no delay is known."""
    sinks = query.get("sinks", ())
    known = [(sink["delay"][percentile], sink["name"]) for sink in sinks if percentile in sink.get("delay", {})]
    return max(known, default=None)


def unmeasured(query: Mapping[str, Any]) -> str:
    """Why no delay of a query is known; "" if one is, or the query does not say."""
    if slowest(query) is not None:
        return ""
    return next((why for sink in query.get("sinks", ()) if (why := sink.get("delay", {}).get("unknown"))), "")


def _restart(run: Mapping[str, Any]) -> str:
    command = run.get("command")
    return f"start it again: {command}" if command else "start it again"


def _problem(
    severity: str,
    run: Mapping[str, Any],
    query: str | None,
    what: str,
    where: str,
    next: str,
    of: Mapping[str, Any] | None = None,
    *,
    weight: float = 0.0,
) -> Json:
    error = (of or {}).get("errors") or [{}]
    if of is not None and error[-1].get("what"):
        what, where, next = f"{what}: {error[-1]['what']}", error[-1].get("where", where), error[-1].get("next", next)
    problem = {"severity": severity, "what": what, "where": where, "next": next, "run": run["id"], "query": query}
    return problem | {"cluster": run.get("cluster"), "_weight": weight}
