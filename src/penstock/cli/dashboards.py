"""`penstock dashboards`: write the dashboards for Grafana and the rules for Prometheus."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.process.paths import usable
from penstock.watch.alert_rules import RUNBOOKS, WRITTEN, rules_file
from penstock.watch.dashboards import dashboards

GRAFANA, PROMETHEUS = Path("grafana"), Path("prometheus")
RULES = PROMETHEUS / "penstock-rules.yml"
MOST = 1 << 20
"""Bytes of an existing file that are read: those of this command are smaller."""


def add(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the files; made if it is missing"
    )
    parser.add_argument(
        "--runbooks",
        default=RUNBOOKS,
        metavar="URL",
        help="address of the page of alerts, to which each alert links (default: %(default)s)",
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace files that this command wrote and that have changed since"
    )
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    text_by_name = files(args.runbooks)
    _require_own({args.out / name: text for name, text in text_by_name.items()}, args.replace)
    for name, text in text_by_name.items():
        _write(args.out / name, text)
        print(f"wrote {args.out / name}")
    folder = args.out.resolve()
    print(
        f"next, in prometheus.yml: add {folder / RULES} to rule_files, and your commands' --metrics addresses "
        "to a job whose name begins with penstock\n"
        f"next, in Grafana: set the path of a provider of dashboards to {folder / GRAFANA}, or import each file"
    )
    return 0


def files(runbooks: str = RUNBOOKS) -> dict[Path, str]:
    """The files by their path below DIR."""
    boards = {GRAFANA / f"{board.uid}.json": board.text() for board in dashboards()}
    return {**boards, RULES: rules_file(runbooks)}


def _require_own(text_by_file: Mapping[Path, str], replace: bool) -> None:
    """Raise PenstockError, before anything is written, if a file would be lost that this command did not write."""
    for file, text in text_by_file.items():
        before = _text(file)
        if before is None or before == text:
            continue
        if WRITTEN not in before:
            raise PenstockError(
                f"{file} was not written by this command", where=str(file.resolve()), next="give another --out"
            )
        if not replace:
            raise PenstockError(
                f"{file} differs from what would be written",
                where=str(file.resolve()),
                next="keep your changes under another name and add --replace, or give another --out",
            )


def _text(file: Path) -> str | None:
    """What a file has now, or None if there is none."""
    with usable(file, "the file cannot be read", "give another --out"):
        if not file.exists():
            return None
        if not file.is_file():
            return ""
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MOST)


def _write(file: Path, text: str) -> None:
    with usable(file, "the file cannot be written", "give another --out"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
