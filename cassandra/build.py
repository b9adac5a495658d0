"""Compiles the plugin for Apache Cassandra into one jar: `python cassandra/build.py [--out PATH]`.

Needs Java 17 or 21; a runtime is enough. The Eclipse compiler of the lock file compiles, also where there is a javac:
the same sources give the same jar on each machine. The jar's manifest tells the Cassandra release it is for, the
compiler, and a digest of its sources; a jar with the right manifest is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
sys.path.insert(0, str(HERE.parent / "src"))

from penstock.errors import PenstockError  # noqa: E402  the path to it is set above
from penstock.local import jars, java  # noqa: E402

OUT = HERE.parent / "src/penstock/local/penstock-cassandra.jar"
MANIFEST = "META-INF/MANIFEST.MF"
# The jars that our imports name. Not all of them: two of Cassandra's jars hold classes in java.util, a conflict for the
# Eclipse compiler.
IMPORTED = ("caffeine", "cassandra-all", "guava", "slf4j-api")
LANGUAGE = "11"  # Cassandra's own class files are of this release
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same jar, byte for byte


def build(out: Path) -> bool:
    """Write the jar unless it is up to date; True if it was written."""
    sources = sorted(SOURCES.rglob("*.java"))
    manifest = _manifest(sources)
    if _read_manifest(out) == manifest:
        return False
    with tempfile.TemporaryDirectory() as folder:
        _compile(sources, Path(folder))
        _pack(Path(folder), manifest, out)
    return True


def cassandra_version() -> str:
    """The release of the node whose jars the lock file lists."""
    paths = (Path(artifact.path) for artifact in jars.artifacts("cassandra"))
    return next(path.parent.name for path in paths if path.name.startswith("cassandra-all-"))


def _manifest(sources: list[Path]) -> bytes:
    digest = hashlib.sha256(cassandra_version().encode())
    for source in sources:
        digest.update(source.relative_to(SOURCES).as_posix().encode())
        digest.update(source.read_bytes())
    lines = [
        "Manifest-Version: 1.0",
        "Implementation-Title: penstock-cassandra",
        "Specification-Title: Apache Cassandra",
        f"Specification-Version: {cassandra_version()}",
        f"Created-By: {_compiler_name()}",
        f"Penstock-Sources: {digest.hexdigest()[:48]}",  # a manifest line holds 72 bytes
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def _read_manifest(jar: Path) -> bytes | None:
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(MANIFEST)
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def _compile(sources: list[Path], classes: Path) -> None:
    arguments = classes.with_suffix(".arguments")
    class_path = os.pathsep.join(str(jar) for jar in jars.fetch("cassandra") if jar.name.startswith(IMPORTED))
    options = ["-proc:none", "-nowarn", "-encoding", "UTF-8", "-cp", class_path, "-d", classes, *sources]
    arguments.write_text("\n".join(f'"{option}"' for option in options))
    try:
        answer = subprocess.run([*_compiler(), f"@{arguments}"], capture_output=True, text=True, check=False)
    finally:
        arguments.unlink()
    if answer.returncode != 0:
        first = "\n".join((answer.stdout + answer.stderr).splitlines()[:40])
        raise PenstockError(f"The plugin does not compile:\n{first}", where=str(SOURCES), next="correct the source")


def _compiler_name() -> str:
    """The name and release of the compiler that the lock file lists."""
    (artifact,) = jars.artifacts("compiler")
    return Path(artifact.path).stem


def _compiler() -> list[str]:
    (eclipse,) = jars.fetch("compiler")
    return [str(java.find().bin), "-jar", str(eclipse), f"-{LANGUAGE}"]


def _pack(classes: Path, manifest: bytes, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_suffix(".part")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST, EPOCH), manifest, zipfile.ZIP_DEFLATED)
        for file in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(file.relative_to(classes).as_posix(), EPOCH)
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    fresh.replace(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="the jar to write (default: %(default)s)")
    out: Path = parser.parse_args().out
    try:
        written = build(out)
    except PenstockError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{out} {'written' if written else 'is up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
