"""Each decoder under its corpus and some hundred inputs of one seed; `python -m fuzz` does the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .watch import names, run

SEED = 20261122
INPUTS, SECONDS = 300, 2.5


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", names())
def test_no_input_breaks_the_decoder(name: str, tmp_path: Path) -> None:
    report = run(name, SEED, tmp_path, inputs=INPUTS, seconds=SECONDS)
    print(report.line())
    assert not report.findings, "\n\n".join(f"input {one.number}: {one.wrong}" for one in report.findings)
    assert report.read and report.refused, "inputs that are all read, or all refused, show little"
