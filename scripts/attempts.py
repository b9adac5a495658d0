"""Runs the tests, and those that failed once more: `python scripts/attempts.py`, with the arguments of pytest.

A test that fails because the machine was busy should not hide what the other thousands say. Failed tests run again
after all others, alone, in one process with servers of their own. If they pass then, the run is green, and its last
lines name them: such a test has a fault, or the product has, and the first failure is above. A test that fails again
makes the run red; so do more than ten failures, which no busy machine explains.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import psutil
import pytest

MOST = 10
"""So many failed tests run a second time."""
SHOWN = 25
"""So many files are named with their time."""


class FailedTests:
    """The names of the tests that failed in this run, in order."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names[report.nodeid] = None


class FileTimes:
    """The seconds that the tests of each file took with their fixtures, and how busy the machine was, for the end."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.ended: dict[str, float] = {}
        self.before = psutil.cpu_times()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        self.ended[getattr(report, "worker_id", "")] = report.stop

    def _busy(self) -> float:
        """The share of all processors' time that was used since the beginning, by whatever runs on this machine."""
        after = psutil.cpu_times()
        spent = sum(after) - sum(self.before)
        return 1 - (after.idle - self.before.idle) / spent if spent else 0.0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"slowest of {len(self.seconds)} files, of {sum(self.seconds.values()):.0f} s")
        for file, seconds in sorted(self.seconds.items(), key=lambda one: one[1], reverse=True)[:SHOWN]:
            terminalreporter.line(f"{seconds:7.1f} s  {file}")
        ends = sorted(self.ended.values())
        waited = f", one process {ends[-1] - ends[0]:.0f} s less than another" if len(ends) > 1 else ""
        terminalreporter.line(f"processors were busy for {self._busy():.0%} of the time{waited}")


def run(arguments: list[str]) -> int:
    """Run pytest with `arguments`, and what failed once more; returns pytest's exit code."""
    failed = FailedTests()
    code = int(pytest.main(arguments, plugins=[failed, FileTimes()]))
    if code != pytest.ExitCode.TESTS_FAILED or not failed.names:
        return code
    if len(failed.names) > MOST:
        print(f"{len(failed.names)} tests failed, more than {MOST}: there is no second attempt")
        return code
    print(f"second attempt of {len(failed.names)} failed tests, alone in one process", flush=True)
    again = [sys.executable, "-m", "pytest", *arguments, "--last-failed", "--numprocesses=0"]
    code = subprocess.run(again, check=False).returncode
    if code == pytest.ExitCode.OK:
        for name in failed.names:
            print(f"unsteady: {name} passed at the second attempt")
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
