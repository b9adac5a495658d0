"""`penstock verify`: compares tables of one cluster with tables of another, and shows the rows that differ.

It exits with 0 if they are equal, 1 if they differ, 2 if some rows are undecided, and 3 if it could not compare them;
with several tables the worst counts.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from penstock.checkpoint.hadoop_folder import store_of
from penstock.cli import command_config
from penstock.cli.arguments import (
    add_checkpoints,
    add_command_config,
    add_spark,
    checkpoints,
    positive,
    servers,
    spark_conf,
)
from penstock.cli.both_clusters import add_clusters, add_tables, source_access, table_pairs, target_access
from penstock.cli.output import printable
from penstock.codec import exact_json
from penstock.database.access import Access
from penstock.errors import PenstockError
from penstock.process.log_lines import begin
from penstock.replicate.applied_changes import Progress, checkpoints_of, progress
from penstock.replicate.hidden_comparison import HiddenReport
from penstock.replicate.replication import TablePair
from penstock.replicate.row_differences import Difference
from penstock.replicate.table_scan import Side
from penstock.replicate.verification import Report, verify
from penstock.spark_runtime.session import session_of_program, until_end

EXIT = {"equal": 0, "different": 1, "undecided": 2}
FAILED = 3
WORST = (FAILED, EXIT["different"], EXIT["undecided"], EXIT["equal"])
SETTLE = "1 minute"
COLUMN = re.compile(r"\A(?:writetime|ttl)\((.*)\)\Z", re.DOTALL)
"""What differs of a column beside its value."""
WHERE = "penstock verify"


def add(parser: ArgumentParser) -> None:
    add_tables(parser)
    add_clusters(parser)
    parser.add_argument(
        "--level",
        type=int,
        choices=(1, 2, 3),
        default=2,
        help="1 compares values; 2 also write times and times to live; 3 also markers of rows and deletions, which "
        "ScyllaDB and Cassandra with the plugin show (default: %(default)s)",
    )
    parser.add_argument(
        "--replication",
        metavar="NAME",
        help="rows that differ are compared again when the penstock replicate of this name has applied all changes of "
        "before; its checkpoint says when",
    )
    add_checkpoints(parser, anywhere=True)
    parser.add_argument(
        "--through",
        type=servers,
        dest="servers",
        metavar="HOST:PORT,...",
        help="Kafka's brokers, if the replication goes through Kafka",
    )
    add_command_config(parser)
    parser.add_argument(
        "--settle",
        metavar="DURATION",
        help="without --replication: how long a change may take from the source to the target; "
        '"0 seconds" if nothing is written or on its way (default: 1 minute)',
    )
    parser.add_argument(
        "--tries", type=positive, default=5, metavar="N", help="comparisons of rows that are written meanwhile (5)"
    )
    parser.add_argument(
        "--limit", type=positive, default=100, metavar="N", help="rows that are shown (default: %(default)s)"
    )
    parser.add_argument("--repair", action="store_true", help="write what differs from the source, with its times")
    parser.add_argument(
        "--take-source",
        action="store_true",
        help="with --repair: where the target keeps its value, write the source's with a later write time, in which "
        "both differ from then on",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each table")
    parser.add_argument("--cores", type=positive, metavar="N", help="cores for Spark")
    add_spark(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    begin()
    try:
        _require_one_way(args)
        clusters = source_access(args), target_access(args)
        spark = session_of_program("penstock-verify", args.cores, verbose=False, **spark_conf(args))
    except PenstockError as problem:
        return _failed(problem)
    with until_end(spark):
        codes = {_compare(spark, args, pair, *clusters) for pair in table_pairs(args)}
    return next(code for code in WORST if code in codes)


def _failed(problem: PenstockError) -> int:
    print(f"penstock: {problem}", file=sys.stderr)
    return FAILED


def _compare(spark: SparkSession, args: Namespace, pair: TablePair, source: Access, target: Access) -> int:
    """Compare two tables and print what was found; their exit code."""
    try:
        report = verify(
            spark,
            Side(pair.source, source),
            Side(pair.target, target),
            level=args.level,
            settle=_progress(spark, args, pair) if args.replication else args.settle or SETTLE,
            tries=args.tries,
            most=args.limit,
            repair=args.repair,
            take_source=args.take_source,
        )
    except PenstockError as problem:
        return _failed(problem)
    if args.json:
        print(exact_json.dumps(_as_json(report)), flush=True)
    else:
        if args.also:
            print(printable(f"{pair.source} and {pair.target}"))
        for line in _lines(report, repaired=args.repair):
            print(printable(line), flush=True)
    return EXIT[report.result]


def _require_one_way(args: Namespace) -> None:
    """How the changes' arrival is known."""
    if args.replication and args.settle:
        raise PenstockError(
            "--replication and --settle both say when changes have arrived", where=WHERE, next="give one of them"
        )
    if not args.replication and (args.servers or args.command_config):
        raise PenstockError(
            "--through and --command-config need --replication",
            where=WHERE,
            next="give the --name of the penstock replicate, or leave them out",
        )


def _progress(spark: SparkSession, args: Namespace, pair: TablePair) -> Progress:
    folder = checkpoints(args)
    names = checkpoints_of(store_of(folder, spark), args.replication, pair.name)
    options = command_config.options(args.command_config) if args.command_config else {}
    return progress(spark, *(folder / name for name in names), servers=args.servers, options=options)


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "source": report.source.table,
        "target": report.target.table,
        "result": report.result,
        "level": report.level,
        "rows": dict(zip(("source", "target"), report.rows, strict=True)),
        "different": report.different,
        "undecided": report.undecided,
        "repaired": report.repaired,
        "taken": report.taken,
        "columns": report.unlike,
        "differences": [_row(row) for row in report.described],
        **({"next": report.next} if report.next else {}),
        **_hidden(report),
        "not_seen": report.unseen,
        "seconds": round(report.seconds, 3),
    }


def _hidden(report: Report) -> dict[str, Any]:
    """What level 3 found besides, of partitions."""
    if report.hidden is None:
        return {}
    fields = asdict(report.hidden)
    differences = [
        {name: value for name, value in difference.items() if value} | {"key": exact_json.loads(difference["key"])}
        for difference in fields.pop("described")
    ]
    return {"hidden": {**fields, "differences": differences}}


def _row(row: Difference) -> dict[str, Any]:
    fields = asdict(row) | {"key": exact_json.loads(row.key)}
    return {name: value for name, value in fields.items() if value not in ("", {})}


def _lines(report: Report, *, repaired: bool) -> Iterator[str]:
    for row in report.described:
        yield from _row_lines(row)
    if report.different > len(report.described):
        yield f"... and {report.different - len(report.described)} more rows"
    yield from report.unlike
    if report.repaired:
        yield f"{report.repaired} rows were written again from the source"
    if report.next:
        yield report.next
    if report.hidden:
        yield from _hidden_lines(report.hidden, repaired=repaired)
    yield f"{report.result}: {report.rows[0]} rows in the source, {report.rows[1]} in the target" + _counted(report)
    yield f"not compared: {'; '.join(report.unseen)}"


def _row_lines(row: Difference) -> Iterator[str]:
    """What differs of a row; the reason why it is left with the first line of each column."""
    if row.missing:
        yield f"{row.key}: not in the {row.missing}" + "".join(f" ({reason})" for reason in row.left.values())
    reasons = dict(row.left)
    for name, (source, target) in row.columns.items():
        reason = reasons.pop(COLUMN.sub(r"\1", name), "")
        yield f"{row.key}: {name} is {source} in the source, {target} in the target" + (
            f" ({reason})" if reason else ""
        )


def _hidden_lines(hidden: HiddenReport, *, repaired: bool) -> Iterator[str]:
    for difference in hidden.described:
        left = f" ({difference.left})" if repaired and difference.left else ""
        sides = f"{difference.source} in the source, {difference.target} in the target"
        yield f"{difference.key}: {difference.what} is {sides}{left}"
    if hidden.repaired:
        yield f"of {hidden.repaired} partitions, markers and deletions were written from the source"


def _counted(report: Report) -> str:
    parts = [f", {report.different} differ"] if report.different else []
    if report.undecided:
        parts.append(f", {report.undecided} were written in each comparison")
    if report.hidden and report.hidden.different:
        parts.append(f"; {report.hidden.different} partitions differ in markers or deletions")
    if report.hidden and report.hidden.undecided:
        parts.append(f"; {report.hidden.undecided} partitions were written in each comparison")
    return "".join(parts) + f"; level {report.level}, {report.seconds:.1f} s"
