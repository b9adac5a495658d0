"""Lists the locked jars and packages with known advisories: `python scripts/advisories.py DATABASE ...`.

A DATABASE has advisories in OSV's format (https://ossf.github.io/osv-schema): a .json file with an advisory or a list
of them, a .zip file, as OSV publishes for each ecosystem ("Maven", "PyPI"), or a folder with these files. Nothing is
downloaded. Each line has: package, version, advisory, its aliases, the first version without it, and a summary. Exit
code 1 if there are any.

It reads `affected[].package`, `versions` and `ranges` of the types ECOSYSTEM and SEMVER with the events `introduced`,
`fixed` and `last_affected`; it ignores withdrawn advisories.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from penstock.local import jars

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "src/penstock/local/locks"
PACKAGES = ("requirements/build.txt", "requirements/dev.txt")

Package = tuple[str, str]
"""Ecosystem and name."""


def locked() -> dict[Package, set[str]]:
    """All jars and packages of the lock files with their versions."""
    found: dict[Package, set[str]] = {}
    for lock in LOCKS.glob("*.lock"):
        for artifact in jars.artifacts(lock.stem):
            *group, name, version, _ = artifact.path.split("/")
            found.setdefault(("Maven", f"{'.'.join(group)}:{name}"), set()).add(version)
    for file in PACKAGES:
        for name, version in re.findall(r"^([\w.-]+)==([\w.+!-]+)", (ROOT / file).read_text(), re.MULTILINE):
            found.setdefault(("PyPI", _plain(name)), set()).add(version)
    return found


def advisories(database: Path) -> Iterator[Mapping[str, Any]]:
    """All advisories in a file or a folder."""
    if database.is_dir():
        for file in sorted(database.rglob("*")):
            if file.suffix in (".json", ".zip"):
                yield from advisories(file)
    elif database.suffix == ".zip":
        with zipfile.ZipFile(database) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield from _each(json.loads(archive.read(name)))
    else:
        yield from _each(json.loads(database.read_text()))


def findings(wanted: Mapping[Package, Iterable[str]], known: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each affected version."""
    lines = set()
    for advisory in known:
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", ()):
            ecosystem, name = affected.get("package", {}).get("ecosystem"), affected.get("package", {}).get("name", "")
            package = ecosystem, _plain(name) if ecosystem == "PyPI" else name
            for version in wanted.get(package, ()):
                if is_affected(ecosystem, version, affected):
                    lines.add(_line(package[1], version, advisory, affected))
    return sorted(lines)


def is_affected(ecosystem: str, version: str, affected: Mapping[str, Any]) -> bool:
    """Whether this version is listed or in a range."""
    order = _ORDERS[ecosystem]
    if version in affected.get("versions", ()):
        return True
    ranges = (each for each in affected.get("ranges", ()) if each.get("type") in ("ECOSYSTEM", "SEMVER"))
    return any(_is_in(order, version, each.get("events", ())) for each in ranges)


def _is_in(order: Callable[[str], Any], version: str, events: Iterable[Mapping[str, str]]) -> bool:
    """Evaluate a range as OSV does: the last event at or before the version counts."""
    inside, at = False, order(version)
    for kind, text in sorted(
        ((kind, text) for event in events for kind, text in event.items()), key=lambda one: order(one[1])
    ):
        if kind == "introduced" and order(text) <= at:
            inside = True
        elif (kind == "fixed" and order(text) <= at) or (kind == "last_affected" and order(text) < at):
            inside = False
    return inside


def _line(name: str, version: str, advisory: Mapping[str, Any], affected: Mapping[str, Any]) -> str:
    events = [event for each in affected.get("ranges", ()) for event in each.get("events", ())]
    fixed = [event["fixed"] for event in events if "fixed" in event]
    names = ", ".join(advisory.get("aliases", ()))
    about = " ".join(str(advisory.get("summary") or advisory.get("details") or "").split())[:120]
    return f"{name} {version}: {advisory['id']} ({names}), fixed in {', '.join(fixed) or 'no version'}: {about}"


def _each(found: Any) -> Iterator[Mapping[str, Any]]:
    yield from found if isinstance(found, list) else [found]


def _plain(name: str) -> str:
    """A PyPI name in its normalized form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _python(text: str) -> Any:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


_QUALIFIERS = ("alpha", "beta", "milestone", "rc", "snapshot", "", "sp")
_SHORT = {"a": "alpha", "b": "beta", "m": "milestone", "cr": "rc", "ga": "", "final": "", "release": ""}


class _Maven:
    """Maven's order of versions: numbers, and qualifiers, some of which come before the release."""

    def __init__(self, text: str) -> None:
        self.parts: list[int | str] = []
        for part in re.findall(r"\d+|[a-z]+", text.lower()):
            if not part.isdigit():
                self._trim()
            self.parts.append(int(part) if part.isdigit() else _SHORT.get(part, part))
        self._trim()

    def _trim(self) -> None:
        """Remove zeros at the end, or before a qualifier: 2.0-rc1 equals 2-rc1."""
        while self.parts and self.parts[-1] in (0, ""):
            self.parts.pop()

    def __le__(self, other: _Maven) -> bool:
        return not other < self

    def __lt__(self, other: _Maven) -> bool:
        for mine, theirs in zip_longest(self.parts, other.parts, fillvalue=""):
            if _rank(mine) != _rank(theirs):
                return _rank(mine) < _rank(theirs)
        return False


def _rank(part: int | str) -> tuple[int, int, str]:
    if isinstance(part, int):
        return (2, part, "")
    known = _QUALIFIERS.index(part) if part in _QUALIFIERS else len(_QUALIFIERS)
    return (0, known, "") if known < len(_QUALIFIERS) else (1, 0, part)


_ORDERS: dict[str, Callable[[str], Any]] = {"PyPI": _python, "Maven": cache(_Maven)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("databases", nargs="+", type=Path, metavar="DATABASE")
    args = parser.parse_args()
    if missing := [str(each) for each in args.databases if not each.exists()]:
        parser.error(f"there is no file or folder {', '.join(missing)}")
    known = [advisory for database in args.databases for advisory in advisories(database)]
    wanted = locked()
    lines = findings(wanted, known)
    print(*lines, sep="\n")
    print(f"{len(wanted)} locked jars and packages, {len(known)} advisories, {len(lines)} findings")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
