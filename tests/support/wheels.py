"""Programs in an environment of their own that has Penstock's wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv", "--quiet")


def run(*command: object, folder: Path = ROOT) -> str:
    """What the program writes to standard output; fails if the program does."""
    ran = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def installed(folder: Path, wheel: str, known: Path) -> Path:
    """The folder of programs of a new environment with a wheel, and extras if it names them."""
    run(*UV, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv/bin/python"
    run(*UV, "pip", "install", "--python", python, "--constraint", known, wheel)
    return python.parent
