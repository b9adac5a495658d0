"""Installs this checkout and its dependencies into the environment of the running Python; `make setup` calls it.

Packages come from `requirements/*.txt`, checked by SHA-256: those of `build.txt` by pip, and then all others by uv,
which is one of them and says what it does. uv takes pip's settings of the package index. If the files do not fit, with
another Python release or on a machine without matching wheels, pip installs versions that pyproject.toml allows, after
a message. A wrong checksum ends the installation.
"""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "x86_64"), ("Darwin", "arm64")}
HASHED = ("--require-hashes", "--requirement")
WRONG_HASHES = ("DO NOT MATCH THE HASHES", "Hash mismatch")
PIP = (sys.executable, "-m", "pip", "install", "--quiet")
UV = (sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable)
STEPS = (
    (*PIP, *HASHED, "requirements/build.txt"),
    # Where Python writes no bytecode (PYTHONDONTWRITEBYTECODE), each process would compile hundreds of modules again.
    (*UV, "--compile-bytecode", "--no-build-isolation", *HASHED, "requirements/dev.txt"),
    (*UV, "--no-build-isolation", "--no-deps", "--editable", "."),
)
# From an index that does not say how long its files stay the same, uv fetches and builds PySpark at each installation
# and keeps the copies of before: 1.9 GB each.
PRUNE = (sys.executable, "-m", "uv", "cache", "prune", "--quiet")
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""pip's settings that uv needs, and its variables for them."""


def unserved() -> str:
    """Why the lock files do not fit this machine; empty if they do."""
    if sys.version_info[:2] not in PYTHONS:
        return f"they are for Python {', '.join(f'{major}.{minor}' for major, minor in PYTHONS)}"
    machine = platform.system(), platform.machine()
    return "" if machine in MACHINES else f"they are not for {' '.join(machine)}"


def environment() -> dict[str, str]:
    """This environment, with pip's settings of the package index for uv; variables of uv's own come first."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        if variable := SETTINGS.get(name.rpartition(".")[2]):
            found[variable] = " ".join(str(ast.literal_eval(value)).split())
    return found | os.environ


def install(*command: str) -> str:
    """Run a command; returns what it said if it failed, else an empty string."""
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        said = list(map(_shown, running.stderr))
    return ("".join(said) or f"exit code {running.returncode}") if running.returncode else ""


def _shown(line: str) -> str:
    print(line, end="", file=sys.stderr, flush=True)
    return line


def main() -> int:
    reason = unserved()
    for step in () if reason else STEPS:
        if failure := install(*step):
            if any(wrong in failure for wrong in WRONG_HASHES):
                return 1
            reason = f"{step[2]} said: {failure.strip().splitlines()[-1]}"
            break
    if not reason:
        if failure := install(*PRUNE):
            print(f"uv's cache keeps what no installation needs: {failure.strip()}", file=sys.stderr)
        return 0
    print(f"requirements/*.txt do not work with Python {platform.python_version()} here: {reason}.", file=sys.stderr)
    print("Installing versions that pyproject.toml allows instead, without checksums.", file=sys.stderr)
    return int(bool(install(*PIP, "--editable", ".[dev]")))


if __name__ == "__main__":
    sys.exit(main())
