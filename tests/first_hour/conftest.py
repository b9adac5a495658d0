"""Penstock's wheel, and an environment that has it without extras."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from wheels import ROOT, UV, installed, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout; `make release` gives the one that it has built."""
    if given := os.environ.get("PENSTOCK_TEST_WHEEL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("wheel")
    run(*UV, "build", "--wheel", "--no-build-isolation", "--out-dir", folder, ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The releases of packages that are here, and need not be fetched."""
    file = tmp_path_factory.mktemp("known") / "known.txt"
    file.write_text(run(*UV, "pip", "freeze", "--exclude-editable", "--python", sys.executable))
    return file


@pytest.fixture(scope="session")
def base(wheel: Path, known: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs that has Penstock without extras."""
    return installed(tmp_path_factory.mktemp("base"), f"{wheel}", known)
