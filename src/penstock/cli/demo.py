"""`penstock demo`: changes become Kafka events, and every write is compared with every event."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError

NEEDED = {"cassandra": "cassandra-driver", "confluent_kafka": "confluent-kafka", "orjson": "orjson", "rich": "rich"}
PARTS = ("spark", "worker", "kafka", "cassandra", "alter")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60, help="how long to write (default: %(default)s)")
    parser.add_argument("--rate", type=_rate, default="3000", help="writes a second, or max (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as one JSON object")
    parser.add_argument(
        "--break",
        dest="broken",
        action="append",
        default=[],
        choices=PARTS,
        help="kill -9 this part in the middle, or alter a table; several come one after the other",
    )
    parser.add_argument("--keep", action="store_true", help="leave the services and the pipeline running")
    parser.add_argument(
        "--root", type=Path, default=Path(".penstock/demo"), metavar="DIR", help="its folder (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0 if nothing was lost, duplicated, misordered or wrong, else 1."""
    missing = [package for module, package in NEEDED.items() if not find_spec(module)]
    if missing:
        raise PenstockError(f"the demo needs {', '.join(missing)}", next="run: pip install 'penstock[demo]'")
    from rich.console import Console

    from penstock.demo.run import Options, demo
    from penstock.demo.verdict import print_verdict
    from penstock.demo.view import view

    console = Console()
    root = args.root.absolute()
    with view(console) as shown:
        verdict = demo(Options(root, args.seconds, args.rate, tuple(args.broken), args.keep), shown)
    print_verdict(console, verdict)
    if args.json:
        args.json.write_text(json.dumps(verdict.as_json(), indent=1) + "\n")
    if args.keep:
        _tell_kept(root)
    return 0 if verdict.ok else 1


def _tell_kept(root: Path) -> None:
    from penstock.demo import kept
    from penstock.demo.consume import TOPICS

    print(f"Services and pipeline still run. Topics: {', '.join(TOPICS)}")
    print(f"Addresses: penstock status --root {root}")
    print(f"Stop: kill {kept.pid(root / 'checkpoints')}; penstock down --root {root}")


def _rate(text: str) -> str:
    if text != "max" and not (text.replace(".", "", 1).isdecimal() and float(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of writes a second nor max")
    return text
