"""`penstock checkpoints`: lists and shows checkpoints, moves them aside, and sets them to a point in time."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.checkpoint.checkpoint_folder import CheckpointFolder, Local, Location
from penstock.checkpoint.hadoop_folder import store_of
from penstock.cli.arguments import add_checkpoints, add_command
from penstock.cli.output import aligned, in_largest_units
from penstock.errors import PenstockError
from penstock.run import positions
from penstock.run.positions import CheckpointPosition

EXAMPLES = {
    "list": ("checkpoints list", "checkpoints list --json"),
    "show": ("checkpoints show orders", "checkpoints show orders/totals --json"),
    "reset": ("checkpoints reset orders",),
    "set": ('checkpoints set orders --to "-2 hours" --dry-run', "checkpoints set orders --to 2026-11-20T10:00:00Z"),
    "adopt": ("checkpoints adopt orders",),
}


def add(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _action(actions, "list", "list all checkpoints: what they read and write, and their positions", _list)
    showing = _action(actions, "show", "show all details of a checkpoint", _show)
    for command in (listing, showing):
        command.add_argument("--json", action="store_true", help="print JSON, one object per line")
    resetting = _action(actions, "reset", "move a checkpoint aside, so that its pipeline starts from scratch", _reset)
    resetting.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    setting = _action(actions, "set", "let a pipeline continue from another point in time", _set)
    setting.add_argument(
        "--to",
        required=True,
        metavar="TIME",
        help='"2026-11-20T10:00:00Z" (UTC if it has no time zone), "earliest", "latest" or "-2 hours"',
    )
    setting.add_argument("--keep-state", action="store_true", help="also set a query with state, and keep that state")
    setting.add_argument("--dry-run", action="store_true", help="only show what would change")
    adopting = _action(
        actions, "adopt", "let a pipeline with other sources or sinks continue from the position", _adopt
    )
    for command in (showing, resetting, setting, adopting):
        command.add_argument("name", metavar="NAME", help="PIPELINE or PIPELINE/QUERY, as shown by `list`")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    with _opened(args.checkpoints) as root:
        args.act(args, root)
    return 0


@contextmanager
def _opened(location: Location) -> Iterator[CheckpointFolder]:
    """The folder of `--checkpoints`; another file system is read through Spark."""
    if isinstance(location, Path):
        yield Local(location)
        return
    from penstock.spark_runtime.session import local_session, until_end

    session = local_session("penstock-checkpoints", cores=1)
    with until_end(session):
        yield store_of(location, session)


def _action(actions: Any, name: str, line: str, act: Any) -> ArgumentParser:
    parser = add_command(actions, name, line, *EXAMPLES[name])
    add_checkpoints(parser, anywhere=True)
    parser.set_defaults(act=act)
    return parser


def _list(args: Namespace, root: CheckpointFolder) -> None:
    known = [positions.show(root, name) for name in positions.checkpoints(root)]
    if args.json:
        for position in known:
            print(json.dumps(position.to_json()))
        return
    rows = [("NAME", "AGE", "BATCH", "POSITION", "LAG", "READS", "WRITES", "RUN"), *map(_row, known)]
    for line in aligned(rows):
        print(line)
    for position in known:
        if position.problem:
            print(f"{position.name}: {position.problem}", file=sys.stderr)


def _row(position: CheckpointPosition) -> tuple[str, ...]:
    lags = [reading.lag for reading in position.readings if reading.lag is not None]
    return (
        position.name,
        in_largest_units(datetime.now(UTC) - position.created),
        "damaged" if position.problem else "-" if position.batch is None else str(position.batch),
        "; ".join(reading.position for reading in position.readings) or "-",
        in_largest_units(max(lags)) if lags else "-",
        _named([reading.source for reading in position.readings]),
        "?" if position.sinks is None else ", ".join(position.sinks),
        _process(position.running, "pid") if position.running else "-",
    )


def _process(running: int | str, word: str) -> str:
    return f"{word} {running}" if isinstance(running, int) else running


def _named(sources: list[Any]) -> str:
    return ", ".join("?" if source is None else str(source) for source in sources) or "?"


def _show(args: Namespace, root: CheckpointFolder) -> None:
    position = positions.show(root, args.name)
    if args.json:
        print(json.dumps(position.to_json()))
        return
    done = "none is finished" if position.batch is None else f"{position.batch}"
    lines = [
        ("folder", position.folder),
        ("query", position.query or "unknown"),
        ("made", f"{positions.iso(position.created)}, {in_largest_units(datetime.now(UTC) - position.created)} ago"),
        ("last batch", done if position.at is None else f"{done}, planned {positions.iso(position.at)}"),
        (
            "in flight",
            "-" if position.unfinished is None else f"batch {position.unfinished}: the next start runs it again",
        ),
    ]
    for reading in position.readings:
        lag = "" if reading.lag is None else f", {in_largest_units(reading.lag)} ago"
        lines += [("reads", _named([reading.source])), ("  position", f"{reading.position}{lag}")]
        lines.append(("  offset", reading.offset or "-"))
    lines.append(("writes", "unknown" if position.sinks is None else ", ".join(position.sinks)))
    lines.append(("state", "yes: windows, tables or counts" if position.stateful else "no"))
    lines.append(("held by", _process(position.running, "process") if position.running else "no run"))
    if position.problem:
        lines.append(("problem", position.problem))
    for name, text in lines:
        print(f"{name:<12} {text}")


def _reset(args: Namespace, root: CheckpointFolder) -> None:
    if not args.yes:
        _ask(f"Move the checkpoint {args.name} aside, so that its pipeline starts from scratch?", args)
    aside = positions.reset(root, args.name)
    print(f"{args.name} is now {aside}; nothing was deleted")
    print(
        "The next start reads from the source's start= setting, with a new query id. Sinks know by this id what they "
        "have written: all sinks, also exactly-once sinks, write the rows that are read again a second time."
    )


def _ask(question: str, args: Namespace) -> None:
    if not sys.stdin.isatty():
        raise PenstockError(
            "this command needs a confirmation, and standard input is not a terminal",
            where=f"checkpoint {args.name}",
            next=f"run: penstock checkpoints reset {args.name} --yes",
        )
    if input(f"{question} Type yes: ").strip().lower() != "yes":
        raise PenstockError("nothing was changed", where=f"checkpoint {args.name}")


def _set(args: Namespace, root: CheckpointFolder) -> None:
    move = positions.move(root, args.name, args.to, keep_state=args.keep_state, dry=args.dry_run)
    verb = "would continue" if args.dry_run else "continues"
    for place, (before, after) in enumerate(zip(move.before, move.after, strict=True)):
        source = f" (source {place + 1})" if len(move.after) > 1 else ""
        print(f"{args.name}{source}: was at {before}; {verb} from {after}")
    what = "the offsets of batch" if move.replaces else "a finished batch,"
    print(f"{'Would write' if args.dry_run else 'Wrote'} {what} {move.number}; the next start looks up its position.")
    if not args.dry_run:
        print("Rows that are read again are written again: for the sinks they are in new batches.")


def _adopt(args: Namespace, root: CheckpointFolder) -> None:
    if positions.adopt(root, args.name):
        print(
            f"{args.name} forgot its sources and sinks: the next query that starts with it continues from its position."
        )
    else:
        print(f"{args.name} has no record of its sources and sinks; the next query that starts with it adds one.")
