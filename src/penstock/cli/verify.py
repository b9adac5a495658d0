"""`penstock verify`: compares a table of one cluster with a table of another, and shows the rows that differ.

It exits with 0 if they are equal, 1 if they differ, 2 if some rows are undecided, and 3 if it could not compare them.
"""

from __future__ import annotations

import json
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
from penstock.cli.both_clusters import add_clusters, source_access, target_access
from penstock.cli.output import printable
from penstock.errors import PenstockError
from penstock.log_lines import begin
from penstock.replicate.applied_changes import Progress, checkpoints_of, progress
from penstock.replicate.replication import TablePair
from penstock.replicate.row_differences import Difference
from penstock.replicate.table_scan import Side
from penstock.replicate.verification import Report, verify
from penstock.session import session_of_program, until_end

EXIT = {"equal": 0, "different": 1, "undecided": 2}
FAILED = 3
SETTLE = "1 minute"
WHERE = "penstock verify"


def add(parser: ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="keyspace.table of the source")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the target's table (default: the same name)")
    add_clusters(parser)
    parser.add_argument(
        "--level",
        type=int,
        choices=(1, 2),
        default=2,
        help="1 compares values; 2 also write times and times to live (default: %(default)s)",
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cores", type=positive, metavar="N", help="cores for Spark")
    add_spark(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    begin()
    try:
        report = _report(args)
    except PenstockError as problem:
        print(f"penstock: {problem}", file=sys.stderr)
        return FAILED
    if args.json:
        print(json.dumps(_as_json(report)))
    else:
        for line in _lines(report):
            print(printable(line))
    return EXIT[report.result]


def _report(args: Namespace) -> Report:
    _require_one_way(args)
    source = Side(args.table, source_access(args))
    target = Side(args.target or args.table, target_access(args))
    spark = session_of_program("penstock-verify", args.cores, verbose=False, **spark_conf(args))
    with until_end(spark):
        settle = _progress(spark, args) if args.replication else args.settle or SETTLE
        return verify(
            spark,
            source,
            target,
            level=args.level,
            settle=settle,
            tries=args.tries,
            most=args.limit,
            repair=args.repair,
        )


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


def _progress(spark: SparkSession, args: Namespace) -> Progress:
    folder = checkpoints(args)
    names = checkpoints_of(store_of(folder, spark), args.replication, TablePair(args.table, "").name)
    options = command_config.options(args.command_config) if args.command_config else {}
    return progress(spark, *(folder / name for name in names), servers=args.servers, options=options)


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "result": report.result,
        "level": report.level,
        "rows": dict(zip(("source", "target"), report.rows, strict=True)),
        "different": report.different,
        "undecided": report.undecided,
        "repaired": report.repaired,
        "columns": report.unlike,
        "differences": [_row(row) for row in report.described],
        "not_seen": report.unseen,
        "seconds": round(report.seconds, 3),
    }


def _row(row: Difference) -> dict[str, Any]:
    found = asdict(row) | {"key": json.loads(row.key)}
    return {name: value for name, value in found.items() if value not in ("", {})}


def _lines(report: Report) -> Iterator[str]:
    for row in report.described:
        if row.missing:
            yield f"{row.key}: not in the {row.missing}"
        for name, (source, target) in row.columns.items():
            yield f"{row.key}: {name} is {source} in the source, {target} in the target"
    if report.different > len(report.described):
        yield f"... and {report.different - len(report.described)} more rows"
    yield from report.unlike
    if report.repaired:
        yield f"{report.repaired} rows were written again from the source"
    yield f"{report.result}: {report.rows[0]} rows in the source, {report.rows[1]} in the target" + _counted(report)
    yield f"not compared: {'; '.join(report.unseen)}"


def _counted(report: Report) -> str:
    parts = [f", {report.different} differ"] if report.different else []
    if report.undecided:
        parts.append(f", {report.undecided} were written in each comparison")
    return "".join(parts) + f"; level {report.level}, {report.seconds:.1f} s"
