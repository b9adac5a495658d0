"""Writes the libraries of the console's page from npm: `python scripts/vendor_console.py [--upgrade]`.

`static/vendor/vendor.json` is the lock file: it lists the packages, their licences, the SHA-256 of their archives, and
the files that are taken from them with their SHA-256. A file with another hash is refused and nothing is written. With
`--upgrade` the newest version of each package is taken, and the lock file is written anew. Needs `npm`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

VENDOR = Path(__file__).parents[1] / "src/penstock/console/page/static/vendor"
LOCK = VENDOR / "vendor.json"
MOST = 8 << 20
"""The most bytes of an archive and of a file in it."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def packed(name: str, version: str) -> bytes:
    """The archive of a package as npm packs it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
        files = list(Path(folder).iterdir())
        if done.returncode or len(files) != 1:
            raise PenstockError(f"npm cannot pack {name} {version}: {done.stderr.strip()}", next="look at npm's log")
        if files[0].stat().st_size > MOST:
            raise PenstockError(f"the archive of {name} {version} has {files[0].stat().st_size} bytes, at most {MOST}")
        return files[0].read_bytes()


def files_of(archive: bytes, names: dict[str, str]) -> dict[str, bytes]:
    """The content of files in an archive: our name by the path in the package."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {own: _content(opened, f"package/{path}") for own, path in names.items()}


def _content(opened: tarfile.TarFile, path: str) -> bytes:
    try:
        member = opened.getmember(path)
    except KeyError:
        raise PenstockError(f"{path} is not in the archive", next=f"correct the path in {LOCK.name}") from None
    stream = opened.extractfile(member)
    if stream is None or member.size > MOST:
        raise PenstockError(f"{path} is not a file of at most {MOST} bytes")
    return stream.read()


def fetched(package: dict[str, Any], upgrade: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A package of the lock file, as fetched, and the content of its files; raises PenstockError for another hash."""
    name, version = package["name"], "latest" if upgrade else package["version"]
    archive = packed(name, version)
    contents = files_of(archive, {own: file["from"] for own, file in package["files"].items()})
    about = json.loads(files_of(archive, {"about": "package.json"})["about"])
    files = {own: {**file, "sha256": sha256(contents[own])} for own, file in package["files"].items()}
    now = {
        "name": name,
        "version": about["version"],
        "licence": about["license"],
        "sha256": sha256(archive),
        "files": files,
    }
    if not upgrade and now != package:
        raise PenstockError(
            f"{name} {version} is not the package of {LOCK.name}: {now}",
            next="find out which of both is right before you trust the archive",
        )
    return now, contents


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args(arguments).upgrade
    packages = [fetched(package, upgrade) for package in json.loads(LOCK.read_text())]
    for package, contents in packages:
        for name, content in contents.items():
            (VENDOR / name).write_bytes(content)
        print(f"{package['name']} {package['version']}: {', '.join(contents)}")
    if upgrade:
        LOCK.write_text(json.dumps([package for package, _ in packages], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PenstockError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
