"""The report of a campaign as a JSON object, and as tables in Markdown."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

PROBLEMS = ("lost", "duplicated", "misordered", "wrong")


@dataclass
class Played:
    """The result of a round; `state` is "good", "failed", or "impossible" on this machine."""

    number: int
    line: str
    application: str
    settings: dict[str, str]
    state: str
    seconds: float
    breaks: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    folder: str = ""


@dataclass
class Report:
    """A campaign's rounds; written to the file after each round."""

    seed: int
    rounds: list[Played] = field(default_factory=list)
    machine: str = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"

    def add(self, played: Played, file: Path | None) -> None:
        self.rounds.append(played)
        if file:
            fresh = file.with_name(file.name + ".new")
            fresh.write_text(json.dumps(asdict(self), indent=1) + "\n")
            fresh.replace(file)

    @property
    def failed(self) -> list[Played]:
        return [played for played in self.rounds if played.state == "failed"]


def read(file: Path) -> Report:
    told = json.loads(file.read_text())
    return Report(told["seed"], [Played(**played) for played in told["rounds"]], told["machine"])


def begun(file: Path, seed: int) -> Report:
    """The good rounds of a report to continue; none if the file does not exist."""
    if not file.exists():
        return Report(seed)
    report = read(file)
    if report.seed != seed:
        raise SystemExit(f"{file} is of seed {report.seed}, not {seed}: give --seed {report.seed}, or another --report")
    report.rounds = [played for played in report.rounds if played.state == "good"]
    return report


def table(reports: Sequence[Report]) -> str:
    """Tables of these campaigns' results by application and by kind of break."""
    rounds = [played for report in reports for played in report.rounds if played.state != "impossible"]
    seeds = ", ".join(str(report.seed) for report in reports)
    breaks = sum(len(played.breaks) for played in rounds)
    lines = [f"{len(rounds)} rounds (seed {seeds}), {breaks} breaks.", "", *_applications(rounds), "", *_kinds(rounds)]
    if impossible := Counter(p.error for report in reports for p in report.rounds if p.state == "impossible"):
        lines += ["", *(f"Not played: {count} rounds ({why})." for why, count in impossible.items())]
    return "\n".join(lines) + "\n"


def _applications(rounds: Sequence[Played]) -> list[str]:
    rows = ["| application | rounds | failed | writes | events | lost | duplicated | misordered | wrong |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for name in sorted({played.application for played in rounds}):
        some = [played for played in rounds if played.application == name]
        sums = [_sum(some, what) for what in ("writes", "events", *PROBLEMS)]
        failed = sum(played.state == "failed" for played in some)
        rows.append("| " + " | ".join(map(str, [name, len(some), failed, *sums])) + " |")
    return rows


def _kinds(rounds: Sequence[Played]) -> list[str]:
    done: Counter[str] = Counter()
    flowed: dict[str, list[float]] = defaultdict(list)
    failed: Counter[str] = Counter()
    for played in rounds:
        failed.update({one["kind"] for one in played.breaks} if played.state == "failed" else ())
        for one in played.breaks:
            done[one["kind"]] += 1
            if one["flowed_s"] is not None:
                flowed[one["kind"]].append(one["flowed_s"])
    rows = ["| break | times | in failed rounds | events flowed again after (median, longest) |", "|---|---|---|---|"]
    for kind, times in sorted(done.items()):
        after = f"{median(flowed[kind]):.0f} s, {max(flowed[kind]):.0f} s" if flowed[kind] else ""
        rows.append(f"| {kind} | {times} | {failed[kind]} | {after} |")
    return rows


def _sum(rounds: Sequence[Played], what: str) -> int:
    return sum(played.numbers.get(what, 0) for played in rounds)
