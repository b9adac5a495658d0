"""An archive of the classes that Spark loads: the JVM maps it instead of loading thousands of classes again.

It belongs to one Java and one installed Spark, so it is in the package's folder, or in the user's cache if that folder
is not writable. The JVM ignores an archive that does not match. See class data sharing in the `java` command's manual.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from penstock.errors import PenstockError
from penstock.local import jars
from penstock.local.java import Java

PACKAGE = Path(__file__).parents[1]
MAKING = "PENSTOCK_ARCHIVE_CLASSES"
"""Environment variable with the file to which a Spark session of this process writes its classes."""
# Users need no warning of an archive that does not match.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def options(java: Java) -> str:
    """The JVM options that use the archive; empty if there is none."""
    if file := os.environ.get(MAKING):
        return f"-XX:ArchiveClassesAtExit={file} {QUIET}"
    archive = _file(java)
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto {QUIET}" if archive.is_file() else ""


def make(java: Java, module: str) -> None:
    """Make the archive, if it is missing, from the classes that a Python module loads when it is run."""
    archive = _file(java)
    if archive.is_file():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(f".{os.getpid()}")
    try:
        command = [sys.executable, "-m", module]
        ran = subprocess.run(
            command, env={**os.environ, MAKING: str(fresh)}, capture_output=True, text=True, check=False
        )
        if ran.returncode or not fresh.is_file():
            said = (ran.stderr.strip().splitlines() or ["no error output"])[-1]
            raise PenstockError(
                f"the archive of Spark's classes cannot be made: {said}", where=str(archive.parent), next="try again"
            )
        fresh.rename(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _file(java: Java) -> Path:
    facts = java.bin, java.bin.stat().st_mtime_ns, pyspark.__file__, pyspark.__version__
    folder = PACKAGE / "__pycache__" if os.access(PACKAGE, os.W_OK) else jars.cache() / "java"
    return folder / f"classes-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}.jsa"
