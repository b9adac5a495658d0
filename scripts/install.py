"""Installs this checkout and its dependencies into the environment of the running Python; `make setup` calls it.

Packages come from `requirements/*.txt`, checked by SHA-256. If these do not fit, with another Python release or on a
machine without matching wheels, it prints a message and installs versions that pyproject.toml allows. A wrong checksum
ends the installation.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64"), ("Darwin", "arm64")}
HASHED = ("--require-hashes", "--requirement")
WRONG_HASH = "DO NOT MATCH THE HASHES"
STEPS = (
    (*HASHED, "requirements/build.txt"),
    ("--no-build-isolation", *HASHED, "requirements/dev.txt"),
    ("--no-build-isolation", "--no-deps", "--editable", "."),
)


def unserved() -> str:
    """Why the lock files do not fit this machine; empty if they do."""
    if sys.version_info[:2] not in PYTHONS:
        return f"they are for Python {', '.join(f'{major}.{minor}' for major, minor in PYTHONS)}"
    machine = platform.system(), platform.machine()
    return "" if machine in MACHINES else f"they are not for {' '.join(machine)}"


def install(*options: str) -> str:
    """Run pip install; returns its error output if it failed, else an empty string."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    return (done.stderr or f"exit code {done.returncode}") if done.returncode else ""


def main() -> int:
    reason = unserved()
    for options in () if reason else STEPS:
        if failure := install(*options):
            if WRONG_HASH in failure:
                print(failure, file=sys.stderr)
                return 1
            reason = f"pip said: {failure.strip().splitlines()[-1]}"
            break
    if not reason:
        return 0
    print(f"requirements/*.txt do not work with Python {platform.python_version()} here: {reason}.", file=sys.stderr)
    print("Installing versions that pyproject.toml allows instead, without checksums.", file=sys.stderr)
    failure = install("--editable", ".[dev]")
    print(failure, end="", file=sys.stderr)
    return int(bool(failure))


if __name__ == "__main__":
    sys.exit(main())
