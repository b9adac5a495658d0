"""The runner of the fuzz tests notices what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import _toy
from .runner import decoder, drawn
from .watch import run, run_case


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_toy.DIFFERENT, "Difference: 1 and 2"),
        (_toy.ERROR, "IndexError: no place"),
        (_toy.CRASH, "Crash: exit code -6"),
        (_toy.HANG, "Hang: "),
        (_toy.MEMORY, "Memory: "),
    ],
)
def test_each_kind_of_fault_is_found(tmp_path: Path, kind: int, said: str) -> None:
    case = tmp_path / "case.bin"
    case.write_bytes(bytes([kind]))
    report = run_case("_toy", case)
    assert report.findings and said in report.findings[0].wrong


@pytest.mark.parametrize("kind", [_toy.GOOD, _toy.REFUSED])
def test_what_is_read_or_refused_is_no_finding(tmp_path: Path, kind: int) -> None:
    case = tmp_path / "case.bin"
    case.write_bytes(bytes([kind]))
    report = run_case("_toy", case)
    assert (report.findings, report.read, report.refused) == ([], 2 * (kind == _toy.GOOD), 2 * (kind == _toy.REFUSED))


def test_a_crash_is_kept_with_its_input_and_the_others_are_tried(tmp_path: Path) -> None:
    toy, seed, inputs = decoder("_toy"), 5, 20
    crashes = [number for number in range(inputs) if drawn(toy, seed, number)[0] == _toy.CRASH]
    report = run("_toy", seed, tmp_path, inputs=inputs)
    assert crashes and report.inputs == inputs
    assert [(one.number, one.wrong.partition("\n")[0]) for one in report.findings] == [
        (number, "Crash: exit code -6") for number in crashes
    ]
    assert Path(report.findings[0].file).read_bytes() == drawn(toy, seed, crashes[0])


def test_an_input_is_its_number_under_its_seed() -> None:
    toy = decoder("_toy")
    assert [drawn(toy, 1, n) for n in range(99)] == [drawn(toy, 1, n) for n in range(99)]
    assert [drawn(toy, 1, n) for n in range(99)] != [drawn(toy, 2, n) for n in range(99)]
