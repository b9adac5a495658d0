"""The files of deploy/ are valid for the programs that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1] / "deploy/systemd/penstock@.service"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit of one pipeline, for this installation."""
    made = tmp_path / "penstock@orders.service"
    made.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", f"{Path(sys.executable).parent}/penstock"))
    return made


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this system has no systemd")
def test_systemd_takes_the_unit(unit: Path) -> None:
    def said() -> str:
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert said() == ""
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=none of these"))
    assert "KillMode" in said() or "kill mode" in said()


def test_the_unit_runs_a_command_that_exists() -> None:
    (line,) = re.findall(r"^ExecStart=/opt/penstock/bin/(penstock run .*)$", UNIT.read_text(), re.MULTILINE)
    described = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--help"], capture_output=True, text=True, check=True
    )
    options = re.findall(r"--\S+", line)
    assert options and all(option in described.stdout for option in options)
