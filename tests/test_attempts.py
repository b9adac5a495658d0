"""scripts/attempts.py over a small suite of its own: which failures a second attempt forgives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/attempts.py"
SUITE = """
import pathlib
import pytest

ATTEMPTS = pathlib.Path(__file__).with_name("attempts")


def attempt(name):
    with ATTEMPTS.open("a") as file:
        file.write(f"{name}\\n")
    return ATTEMPTS.read_text().split().count(name)


@pytest.fixture
def busy():
    assert attempt("busy") > 1


@pytest.fixture
def left_open():
    yield
    assert attempt("left_open") > 1


def test_passes():
    attempt("passes")


def test_fails_at_first():
    assert attempt("fails_at_first") > 1, "the first failure"


def test_setup_fails_at_first(busy):
    pass


def test_teardown_fails_at_first(left_open):
    pass


def test_always_fails():
    assert attempt("always_fails") == 0


@pytest.mark.parametrize("number", range(11))
def test_eleven(number):
    assert attempt(f"eleven{number}") > 1
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(suite: Path, *arguments: str, processes: int = 0) -> tuple[int, list[str]]:
    """The exit code and the lines of a run."""
    command = [sys.executable, str(SCRIPT), "-p", "xdist.plugin", f"--numprocesses={processes}", *arguments]
    # Plugins that this suite does not need, such as Hypothesis, take most of a run's time.
    quick = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=suite, capture_output=True, text=True, check=False, env=quick)
    return ended.returncode, ended.stdout.splitlines()


def attempts(suite: Path, name: str) -> int:
    return (suite / "attempts").read_text().split().count(name)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("processes", [0, 2])
def test_what_passes_at_the_second_attempt_is_green_and_named(suite: Path, processes: int) -> None:
    code, lines = run(suite, "-k", "passes or at_first", processes=processes)
    assert code == 0
    assert sorted(lines[-3:]) == [
        "unsteady: test_suite.py::test_fails_at_first passed at the second attempt",
        "unsteady: test_suite.py::test_setup_fails_at_first passed at the second attempt",
        "unsteady: test_suite.py::test_teardown_fails_at_first passed at the second attempt",
    ]
    assert any("the first failure" in line for line in lines)
    assert attempts(suite, "passes") == 1


def test_what_fails_again_is_red(suite: Path) -> None:
    code, lines = run(suite, "-k", "fails_at_first or always_fails")
    assert code == 1
    assert not any(line.startswith("unsteady") for line in lines)
    assert attempts(suite, "always_fails") == 2


@pytest.mark.slow
def test_more_than_ten_failures_are_red_at_once(suite: Path) -> None:
    code, lines = run(suite, "-k", "eleven")
    assert code == 1
    assert lines[-1] == "11 tests failed, more than 10: there is no second attempt"
    assert attempts(suite, "eleven0") == 1


@pytest.mark.slow
def test_a_run_without_a_failure_runs_once(suite: Path) -> None:
    code, lines = run(suite, "-k", "passes")
    assert code == 0
    assert not any("second attempt" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(["-k", "nothing"], 5), (["--no-such-option"], 4), (["missing"], 4)])
def test_other_exit_codes_are_those_of_pytest(suite: Path, arguments: list[str], code: int) -> None:
    assert run(suite, *arguments)[0] == code


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_red_at_once(suite: Path) -> None:
    (suite / "test_other.py").write_text("import no_such_module\n")
    code, lines = run(suite, "-k", "passes")
    assert code not in (0, 5)
    assert not any("second attempt" in line for line in lines)


@pytest.mark.slow
def test_a_process_that_ends_in_a_test_fails_the_test(suite: Path) -> None:
    (suite / "test_ends.py").write_text("import os\n\n\ndef test_ends():\n    os._exit(3)\n")
    code, lines = run(suite, "test_ends.py", processes=2)
    assert code != 0
    assert any(line.startswith("second attempt of 1 failed") for line in lines)


@pytest.mark.slow
def test_a_slow_case_is_slow_although_it_is_alone() -> None:
    cases = "tests/fuzz/test_runner.py::test_each_kind_of_fault_is_found"
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", "slow"]
    for case, code in (("[2-Difference: 1 and 2]", 5), ("[6-Memory: ]", 0)):
        assert subprocess.run([*command, cases + case], cwd=SCRIPT.parents[1], check=False).returncode == code
