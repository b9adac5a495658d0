"""Runs the tests that need no server on each Python that is here: `python scripts/pythons.py [3.12 3.13]`.

Each release has an environment of its own in build/pythons, with the packages of `requirements/`, as `make setup` has.
The last lines are a table: a release that is not on this machine, or whose packages cannot be installed, has a line
that says so. The exit code is 1 if a test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/pythons"
RELEASES = ("3.11", "3.12", "3.13", "3.14")
LANE = ("-m", "unit and not slow", "--numprocesses=2", "--dist=loadfile", "--quiet")


def main(releases: list[str]) -> int:
    results = {release: _results(release) for release in releases or RELEASES}
    print("| Python | packages | tests |", "|---|---|---|", sep="\n")
    for release, (packages, tests, _) in results.items():
        print(f"| {release} | {packages} | {tests} |")
    return max(code for _, _, code in results.values())


def _results(release: str) -> tuple[str, str, int]:
    """What is known of a release's packages and tests, and 1 if a test failed."""
    python = _interpreter(release)
    if python is None:
        return "not on this machine", "-", 0
    environment = FOLDER / release
    if not environment.exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
    if subprocess.run([environment / "bin/python", "scripts/install.py"], cwd=ROOT, check=False).returncode:
        return "not installed: see above", "-", 0
    command = [str(environment / "bin/python"), "-m", "pytest", *LANE]
    tests = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(tests.stdout, flush=True)
    last = (tests.stdout.strip() or f"ended with {tests.returncode}").splitlines()[-1]
    return "installed", last, int(tests.returncode > 0)


def _interpreter(release: str) -> str | None:
    """Of pyenv, or one on the PATH; a link to a Python that is not there does not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in (*pyenv.glob(f"versions/{release}.*/bin/python"), shutil.which(f"python{release}")):
        if python and not subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            return str(python)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
