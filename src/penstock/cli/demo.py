"""`penstock demo`: runs an application end to end and compares every write with its results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from penstock.cli.arguments import positive
from penstock.errors import PenstockError
from penstock.extras import install
from penstock.process.paths import usable

NEEDED = {"cassandra": "cassandra-driver", "confluent_kafka": "confluent-kafka", "orjson": "orjson", "rich": "rich"}
NEEDED_BY_ADTECH = {
    "adbc_driver_postgresql": "adbc-driver-postgresql",
    "datasketches": "datasketches",
    "httptools": "httptools",
    "msgspec": "msgspec",
    "jsonschema_rs": "jsonschema-rs",
}


@dataclass(frozen=True)
class Application:
    """A demo: its package, the parts it can break, the packages it needs, and their extras."""

    package: str
    root: Path
    parts: tuple[str, ...]
    needed: dict[str, str]
    extras: str


CDC = Application(
    "penstock_demo",
    Path(".penstock/demo"),
    ("spark", "worker", "kafka", "cassandra", "alter", "generation"),
    NEEDED,
    "demo",
)
ADTECH = Application(
    "penstock_demo.adtech",
    Path(".penstock/adtech"),
    ("ingest", "first-hop", "spark", "worker", "kafka", "cassandra", "postgres"),
    NEEDED | NEEDED_BY_ADTECH,
    "demo,segments,postgres,ingest",
)
REPLICATE = Application(
    "penstock_demo.replicate",
    Path(".penstock/demo-replicate"),
    ("spark", "worker", "cassandra", "target", "kafka", "alter", "generation"),
    NEEDED,
    "demo",
)
AUTO = "auto"
APPLICATIONS = {"cdc": CDC, "adtech": ADTECH, "replicate": REPLICATE}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "application",
        nargs="?",
        choices=tuple(APPLICATIONS),
        default="cdc",
        help="cdc: changes of tables as Kafka events; adtech: tracking events by HTTP become persons, segments, counts"
        " and deliveries; replicate: tables are kept equal to a copy (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=_seconds, default=60, help="seconds to write for (default: %(default)s)")
    parser.add_argument(
        "--rate",
        type=_rate,
        default=AUTO,
        help="writes per second, or max (not for adtech); the default, auto, finds the rate that this machine holds",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to a file, as one JSON object")
    parser.add_argument(
        "--break",
        dest="broken",
        action="append",
        default=[],
        metavar="PART",
        help="break a part in the middle of the run, and start it again if it was killed; repeat for several, one "
        f"after the other. cdc: {', '.join(CDC.parts)} (kill -9, alter a table, publish new streams); adtech: "
        f"{', '.join(ADTECH.parts)}; replicate: {', '.join(REPLICATE.parts)}",
    )
    parser.add_argument(
        "--cluster",
        type=positive,
        default=0,
        metavar="N",
        help="run the pipeline on a Spark cluster of N workers, each with an executor of its own (not for adtech); "
        "--break worker then kills a worker with all that runs on it",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        choices=(1, 2),
        default=1,
        help="replicate only: 1 for two keyspaces of one node, 2 for a node for the target (default: %(default)s)",
    )
    parser.add_argument(
        "--through-kafka", action="store_true", help="replicate only: changes go through topics to the target"
    )
    parser.add_argument("--keep", action="store_true", help="leave the services and the pipeline running")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="folder (default: .penstock/demo, .penstock/adtech or .penstock/demo-replicate)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Return exit code 0 if nothing was lost, duplicated, misordered or wrong, else 1."""
    application = APPLICATIONS[args.application]
    _check(args, application)
    from rich.console import Console

    from penstock_demo.stage import Options, staged
    from penstock_demo.view import view

    root, rate, console = (args.root or application.root).absolute(), args.rate, Console()
    chosen = import_module(f"{application.package}.run")
    options = Options(
        root, args.seconds, rate, tuple(args.broken), args.keep, args.cluster, args.nodes, args.through_kafka
    )
    with view(console) as shown:
        verdict = staged(lambda stack: chosen.Demo(options, shown, stack).run(), keep=args.keep)
    import_module(f"{application.package}.verdict").print_verdict(console, verdict)
    if args.keep:
        _print_running(root, chosen.Demo.topics)
    if args.json:
        args.json.write_text(json.dumps(asdict(verdict), indent=1, default=str) + "\n")
    return 0 if verdict.ok else 1


def _check(args: argparse.Namespace, application: Application) -> None:
    if missing := [package for module, package in application.needed.items() if not find_spec(module)]:
        raise PenstockError(f"the demo needs {', '.join(missing)}", next=f"run: {install(application.extras)}")
    for part in args.broken:
        if part not in application.parts:
            raise PenstockError(
                f"{part!r} is not a part that can be broken",
                where=f"penstock demo {args.application}",
                next=f"choose from: {', '.join(application.parts)}",
            )
    if args.application == "adtech" and args.rate == "max":
        raise PenstockError(
            "--rate max does not work here", where="penstock demo adtech", next="give a number of events per second"
        )
    if args.application == "adtech" and args.cluster:
        raise PenstockError(
            "--cluster does not work here", where="penstock demo adtech", next="leave it out, or run: penstock demo"
        )
    if application is REPLICATE:
        _check_replication(args)
    elif args.nodes > 1 or args.through_kafka:
        raise PenstockError(
            "--nodes and --through-kafka are for the demo of a replication",
            where=f"penstock demo {args.application}",
            next="run: penstock demo replicate",
        )
    if args.json:
        _require_writable(args.json)


def _check_replication(args: argparse.Namespace) -> None:
    """Raise PenstockError for a break of a part that is not there."""
    for part, there, option in (
        ("target", args.nodes > 1, "--nodes 2"),
        ("kafka", args.through_kafka, "--through-kafka"),
    ):
        if part in args.broken and not there:
            raise PenstockError(f"--break {part} needs {option}", where="penstock demo replicate", next=f"add {option}")


def _require_writable(file: Path) -> None:
    """Checked first: the demo writes the file only after minutes."""
    with usable(file, "the result cannot be written", "give --json a file that can be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()


def _print_running(root: Path, topics: Iterable[str]) -> None:
    from penstock_demo.parts import kept
    from penstock_demo.stage import TARGET

    print("The services and the pipeline keep running.", *(["Topics:", ", ".join(topics)] if topics else []))
    roots = [root, *(folder for folder in [root / TARGET] if folder.exists())]
    for service_root in roots:
        print(f"Addresses: penstock status --root {service_root}")
    downs = "; ".join(f"penstock down --root {service_root}" for service_root in roots)
    print(f"Stop: kill {' '.join(str(pid) for _, pid in kept(root))}; {downs}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _rate(text: str) -> str:
    if text not in ("max", AUTO) and not (text.replace(".", "", 1).isdecimal() and float(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of writes per second, auto or max")
    return text
