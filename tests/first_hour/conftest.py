"""Penstock's wheel, and an environment that has it without extras."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from wheels import ROOT, UV, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(*UV, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs that has Penstock without extras."""
    folder = tmp_path_factory.mktemp("base")
    # The releases that are here need not be fetched.
    known = run(*UV, "pip", "freeze", "--exclude-editable", "--python", sys.executable)
    (folder / "known.txt").write_text(known)
    run(*UV, "venv", "--python", sys.executable, folder / "venv")
    python = folder / "venv/bin/python"
    run(*UV, "pip", "install", "--python", python, "--constraint", folder / "known.txt", wheel)
    return python.parent
