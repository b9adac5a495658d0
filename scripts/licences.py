"""Writes NOTICE, with the licence of each package and jar of the lock files: `.venv/bin/python scripts/licences.py`.

Run it only to change a version, after `make setup`. Licences come from the packages' metadata, and from the pom.xml or
the manifest in jars, else from their .pom in the Maven repository, or its parents.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

from penstock.local import jars
from penstock.local.jars import default_root

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "src/penstock/local/locks"
VENDORED = ROOT / "src/penstock/console/page/static/vendor/vendor.json"
PACKAGES = ("requirements/build.txt", "requirements/dev.txt")
UNKNOWN = "not stated"
LONGEST = 60
"""The longest name of a licence, in characters: longer strings are licence texts."""

HEAD = """Penstock
This product is licensed under the Apache License 2.0 (LICENSE).

It uses the packages and jars below. None of them is part of it: packages come from the package index when it is
installed, jars from a Maven repository when a service is started. Each has the licence that its authors state.
Part of it, and unchanged, are the libraries of the console's page: their licences stand beside them, in
src/penstock/console/page/static/vendor. Written by scripts/licences.py.
"""
NAMES = (
    (r"apache.*2(\.0)?|^apache$|asl 2", "Apache-2.0"),
    (r"^apache software license$", "Apache-2.0"),
    (r"^mozilla public license 2", "MPL-2.0"),
    (r"^mit\b|/mit|mit license", "MIT"),
    (r"epl.?v?20?|eclipse public.*2", "EPL-2.0"),
    (r"epl.?v?10?|eclipse public.*1", "EPL-1.0"),
    (r"lgpl.*2\.1|lesser.*2\.1", "LGPL-2.1"),
    (r"bsd.?3|3.clause|new bsd|revised bsd", "BSD-3-Clause"),
    (r"bsd.?2|2.clause", "BSD-2-Clause"),
)


def packages() -> list[tuple[str, str, str]]:
    """Name, version and licence of each locked package."""
    found = {}
    for file in PACKAGES:
        for name, version in re.findall(r"^([\w.-]+)==([\w.+!-]+)", (ROOT / file).read_text(), re.MULTILINE):
            found[name, version] = _of_package(name, version)
    return sorted((name, version, licence) for (name, version), licence in found.items())


def _of_package(name: str, version: str) -> str:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return f"{UNKNOWN} here: not for this machine"
    return _stated(installed)


def _stated(installed: Distribution) -> str:
    about = installed.metadata
    classified = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")
    ]
    told = (about[field] for field in ("License-Expression", "License") if field in about)
    texts = (*told, " AND ".join(classified))
    short = (text.strip() for text in texts if text and len(text.strip()) <= LONGEST and "\n" not in text.strip())
    found = next((text for text in short if text not in ("OSI Approved", "UNKNOWN", "")), UNKNOWN)
    # An SPDX expression stays unchanged.
    return found if re.search(" (AND|OR|WITH) ", found) else _plain(found)


def vendored() -> list[tuple[str, str, str]]:
    """Name, version and licence of each library of the console's page."""
    return [(each["name"], each["version"], each["licence"]) for each in json.loads(VENDORED.read_text())]


def archives() -> list[tuple[str, str, str]]:
    """Name, version and licence of each locked jar."""
    paths = {artifact.path: artifact for lock in LOCKS.glob("*.lock") for artifact in jars.artifacts(lock.stem)}
    jars.fetch_all([artifact for artifact in paths.values() if not artifact.cached])
    return sorted((*named(path), _of_jar(path, artifact.file)) for path, artifact in paths.items())


def named(path: str) -> tuple[str, str]:
    """`group:artifact` and the version of a file's path in a Maven repository."""
    *group, artifact, version, _ = path.split("/")
    return f"{'.'.join(group)}:{artifact}", version


def _of_jar(path: str, file: Path) -> str:
    if path.endswith(".jar"):
        with zipfile.ZipFile(file) as archive:
            if found := _of_poms(archive, named(path)[0]) or _of_manifest(archive):
                return " OR ".join(dict.fromkeys(_plain(each) for each in found))
    return " OR ".join(dict.fromkeys(_plain(each) for each in _of_repository(*_place(path)))) or UNKNOWN


def _place(path: str) -> tuple[str, str, str]:
    *group, artifact, version, _ = path.split("/")
    return "/".join(group), artifact, version


def _of_repository(group: str, artifact: str, version: str) -> list[str]:
    """The licences in its .pom, or in the nearest parent with licences."""
    base = os.environ.get("PENSTOCK_MIRROR", "").rstrip("/") or default_root().rstrip("/")
    with urlopen(f"{base}/{group}/{artifact}/{version}/{artifact}-{version}.pom", timeout=60) as answer:
        root = ElementTree.fromstring(answer.read())
    if found := _names(root):
        return found
    parent = root.find("./{*}parent")
    if parent is None:
        return []
    above = [(parent.findtext(f"./{{*}}{part}") or "").strip() for part in ("groupId", "artifactId", "version")]
    return _of_repository(above[0].replace(".", "/"), above[1], above[2])


def _of_poms(archive: zipfile.ZipFile, name: str) -> list[str]:
    """The names of the licences in its own pom.xml; jars that contain other jars have several."""
    wanted = f"META-INF/maven/{name.replace(':', '/')}/pom.xml"
    if wanted not in archive.namelist():
        return []
    return _names(ElementTree.fromstring(archive.read(wanted)))


def _names(root: ElementTree.Element) -> list[str]:
    return [each.text.strip() for each in root.iterfind("./{*}licenses/{*}license/{*}name") if each.text]


def _of_manifest(archive: zipfile.ZipFile) -> list[str]:
    if "META-INF/MANIFEST.MF" not in archive.namelist():
        return []
    text = archive.read("META-INF/MANIFEST.MF").decode("utf-8", "replace").replace("\r\n", "\n").replace("\n ", "")
    line = re.search(r"^Bundle-License: *(.+)$", text, re.MULTILINE)
    return [part.partition(";")[0].strip().strip('"') for part in line[1].split(",")] if line else []


def _plain(text: str) -> str:
    """The licence's usual short name."""
    return next((name for pattern, name in NAMES if re.search(pattern, text, re.IGNORECASE)), " ".join(text.split()))


def notice() -> str:
    """The text of NOTICE."""
    parts = [HEAD]
    kinds = {"Libraries of the console's page": vendored(), "Python packages": packages(), "Jars": archives()}
    for title, rows in kinds.items():
        parts += [f"{title}:\n", *(f"  {name} {version}: {licence}" for name, version, licence in rows), ""]
    return "\n".join(parts)


def main() -> int:
    text = notice()
    (ROOT / "NOTICE").write_text(text)
    unknown = [line.strip() for line in text.splitlines() if UNKNOWN in line]
    print(f"NOTICE: {text.count(chr(10) + '  ')} packages and jars, {len(unknown)} without a stated licence")
    print(*unknown, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
