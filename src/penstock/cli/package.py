"""`penstock package`: packs this Python environment for executors on other machines, with its compiled loops.

Spark unpacks the archive beside each executor. The machines need the Python on which the environment is based, at the
same path; an image has that, too (docs/cluster.md compares both).
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from penstock.cli.warm import PARTS, compiled
from penstock.errors import PenstockError

FOLDER = "environment"
"""The name under which Spark unpacks the archive."""
OF_DRIVER = "spark-classes"
"""The part of `penstock compile` that executors do not use."""
LEFT_OUT = "*/pyspark/jars/*", "*/pyspark/examples/*", "*.jsa", "*/include/*"
"""What executors have from Spark itself, or do not use: half of the size."""


def add(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=_archive, metavar="FILE.tar.gz", help="the archive; must not exist")
    parser.set_defaults(run=run)


def _archive(text: str) -> Path:
    if not text.endswith((".tar.gz", ".tgz")):
        raise ValueError
    return Path(text)


_archive.__name__ = "name of a .tar.gz file"


def run(args: Namespace) -> int:
    # Here, so that its help needs no extra.
    import venv_pack

    if args.file.exists():
        raise PenstockError(f"{args.file} exists", next="remove it, or give another name")
    if sys.prefix == sys.base_prefix:
        raise PenstockError(
            "this Python is not one of a virtual environment, of which packages can be made",
            where=sys.prefix,
            next="make one: python3 -m venv env && env/bin/pip install 'penstock[package]'",
        )
    for line in compiled(part for part in PARTS if part != OF_DRIVER):
        print(line, flush=True)
    print(f"packing {sys.prefix} ...", flush=True)
    try:
        venv_pack.pack(prefix=sys.prefix, output=str(args.file), filters=[("exclude", pattern) for pattern in LEFT_OUT])
    except (venv_pack.VenvPackException, OSError) as error:
        args.file.unlink(missing_ok=True)
        what = f"the environment cannot be packed: {' '.join(str(error).split())}"
        next = "install wheels, not checkouts (pip install without -e), on a disk with space"
        raise PenstockError(what, where=sys.prefix, next=next) from error
    size = args.file.stat().st_size / 1e6
    print(f"packed {args.file} ({size:.0f} MB); executors need {Path(sys.executable).resolve()} on their machines")
    print("give it to a run:")
    print(f"  --conf spark.archives={args.file.resolve()}#{FOLDER}")
    print(f"  --conf spark.pyspark.python=./{FOLDER}/bin/python")
    return 0
