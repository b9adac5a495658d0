"""A new user goes through the documents' commands, from the wheel to `penstock down`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import patience

LONGEST = 60.0
"""Seconds until the first line of any command: a bound for a busy machine, no measure of speed."""


@pytest.mark.kill
@pytest.mark.slow
def test_the_commands_of_the_documents_work_in_their_order(tmp_path: Path) -> None:
    script = Path(__file__).with_name("user.py")
    words = [sys.executable, str(script), "--no-mistakes", "--json", str(tmp_path / "told.json")]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience(1200))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    steps = {step["command"]: step for step in json.loads((tmp_path / "told.json").read_text())["steps"]}
    assert "penstock run orders.py:orders" in steps and "penstock down" in steps
    assert all(step["code"] == 0 for step in steps.values())
    assert all(step["first"] < LONGEST for step in steps.values())
