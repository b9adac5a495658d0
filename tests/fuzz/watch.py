"""Processes under test from outside: crashes, hangs and what they report, as findings with the input of each."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from waiting import patience

from .runner import CORPUS, MOST_FINDINGS, Slate

ENDLESS = 2**62
ENDLESS_CPU = 120.0
"""CPU seconds on a quiet machine after which an input is taken to have no end: its first use may compile code."""
SILENCE = 300.0
"""Seconds of an input on a quiet machine, however little CPU it gets."""
LOOK = 0.1
TESTS = CORPUS.parents[1]
PACKAGE = CORPUS.parent.name


@dataclass(frozen=True)
class Finding:
    """An input with what is wrong about it; `file` is where it was put."""

    number: int
    wrong: str
    file: str


@dataclass
class Report:
    """What became of one decoder's inputs; `slowest` in CPU seconds, `largest` in bytes of memory, of one input."""

    decoder: str
    seed: int
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    largest: int = 0
    findings: list[Finding] = field(default_factory=list)

    def line(self) -> str:
        """For a person."""
        return (
            f"{self.decoder}: {self.inputs} inputs of seed {self.seed} in {self.seconds:.0f} s, {self.read} read, "
            f"{self.refused} refused, slowest {self.slowest * 1000:.0f} ms of CPU, most memory "
            f"{self.largest / (1 << 20):.0f} MiB, {len(self.findings)} findings"
        )

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


def names() -> list[str]:
    """The decoders: the modules beside this one that define one."""
    return sorted(file.stem for file in CORPUS.parent.glob("[a-z]*.py") if "\nDECODER = " in file.read_text())


def run(
    name: str,
    seed: int,
    cases: Path,
    *,
    inputs: int = ENDLESS,
    seconds: float = float("inf"),
    env: dict[str, str] | None = None,
) -> Report:
    """The corpus, then inputs of a seed until their number or the time is reached.

    Those that are wrong are put into the folder `cases`; `env` is added to the environment.
    """
    report = Report(name, seed)
    began, first = time.monotonic(), -ENDLESS
    cases.mkdir(parents=True, exist_ok=True)
    while first < inputs and len(report.findings) < MOST_FINDINGS and (now := time.monotonic()) < began + seconds:
        left = began + seconds - now
        arguments = ["--seed", str(seed), "--first", str(first), "--inputs", str(inputs), "--seconds", str(left)]
        ended_by, slate, found = _process(report, arguments, env or {})
        for one in found:
            _add(report, cases, one["number"], one["wrong"], bytes.fromhex(one["input"]))
        if not ended_by:
            break
        first = slate.number + 1
        _add(report, cases, slate.number, ended_by, slate.input())
    report.seconds = time.monotonic() - began
    return report


def run_case(name: str, file: Path) -> Report:
    """One input, alone in a process, where time and memory are those of its second use."""
    report = Report(name, 0)
    ended_by, _, found = _process(report, ["--case", str(file.absolute())], {})
    report.findings = [Finding(one["number"], one["wrong"], str(file)) for one in found]
    if ended_by:
        report.findings.append(Finding(0, ended_by, str(file)))
    return report


def _process(report: Report, arguments: list[str], env: dict[str, str]) -> tuple[str, Slate, list[dict[str, Any]]]:
    """One process until it ends: what ended it, if that was an input; its slate; what it found."""
    with tempfile.TemporaryDirectory() as folder:
        file, told, errors = (Path(folder) / name for name in ("slate", "told", "errors"))
        Slate.make(file)
        command = [sys.executable, "-m", f"{PACKAGE}.runner", report.decoder, str(file), *arguments]
        with told.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=_environment(env), cwd=TESTS)
            slate = Slate(file)
            ended_by = _watch(process, slate)
        slate.look()
        report.inputs += slate.read + slate.refused + bool(ended_by)
        report.read, report.refused = report.read + slate.read, report.refused + slate.refused
        report.slowest, report.largest = max(report.slowest, slate.slowest), max(report.largest, slate.largest)
        said = errors.read_text(errors="replace")[-2000:]
        if ended_by and not slate.busy:
            raise RuntimeError(f"the process under test of {report.decoder} ended by itself: {ended_by}\n{said}")
        found = [json.loads(line) for line in told.read_text().splitlines()]
        return (f"{ended_by}\n{said}" if ended_by else ""), slate, found


def _environment(env: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), **env}


def _watch(process: subprocess.Popen[bytes], slate: Slate) -> str:
    """Wait for its end; kill it when one input does not come to its end. Empty if it ended well."""
    since, cpu, number = time.monotonic(), 0.0, -ENDLESS
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK)
        slate.look()
        if slate.number != number or not slate.busy:
            since, cpu, number = time.monotonic(), _cpu(process.pid), slate.number
        elif _cpu(process.pid) - cpu > patience(ENDLESS_CPU) or time.monotonic() - since > patience(SILENCE):
            process.kill()
            process.wait()
            return f"Hang: no end after {time.monotonic() - since:.0f} s"
    return "" if process.returncode == 0 else f"Crash: exit code {process.returncode}"


def _cpu(pid: int) -> float:
    """CPU seconds of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or this is no Linux, where the limit is that of silence
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _add(report: Report, cases: Path, number: int, wrong: str, data: bytes) -> None:
    """Keep a finding; one of time or memory only if it comes again when nothing is compiled or loaded any more."""
    file = cases / f"{report.decoder}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    file.write_bytes(data)
    if wrong.startswith(("Hang", "Memory")) and not run_case(report.decoder, file).findings:
        file.unlink()
        return
    report.findings.append(Finding(number, wrong, str(file)))
