"""The jar that gives Apache Cassandra the change log of ScyllaDB: in the wheel, or built in a checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.errors import PenstockError

JAR = Path(__file__).with_name("penstock-cassandra.jar")
SOURCES = Path(__file__).parents[3] / "cassandra"


def jar(say: Callable[[str], None] = lambda line: None) -> Path:
    """The plugin's jar; in a checkout its build script first rebuilds it if sources changed.

    Raises PenstockError if the build fails or the jar is missing.
    """
    build = SOURCES / "build.py"
    if build.exists():
        if not JAR.exists():
            say("building the Cassandra plugin")
        answer = subprocess.run([sys.executable, str(build)], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise PenstockError(
                f"The Cassandra plugin does not build: {(answer.stderr or answer.stdout).strip()}",
                where=str(SOURCES),
                next=f"run: {sys.executable} {build}",
            )
    if not JAR.exists():
        raise PenstockError(
            "The Cassandra plugin is missing from this installation", where=str(JAR), next="reinstall penstock"
        )
    return JAR
