"""The result of the demo: its numbers as one object, and as a table with examples of what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock_demo.adtech.reconcile import PROBLEMS, STAGES, Report
from penstock_demo.adtech.site import LATE
from penstock_demo.verdict import print_details


@dataclass
class Verdict:
    """What the demo found.

    `events` counts acknowledged events, `acts` those that are not sign-ins, `copies` further copies from requests that
    were sent again, `repeated` what the first hop wrote twice. `stages` has for each stage what was compared and what
    was lost, duplicated or wrong. Delays are from the request that carries an event to the receipt of the change that
    it makes; those of the first hop are from topic to topic, by Kafka's clock. `cpu_s` is the CPU time of each part
    while visitors acted.
    """

    events: int
    acts: int
    persons: int
    changes: int
    members: int
    copies: int
    repeated: int
    retries: int
    refused: int
    late: int
    lost: int
    duplicated: int
    wrong: int
    stages: dict[str, dict[str, int]]
    delay_s: dict[str, float]
    first_hop_s: dict[str, float]
    rate_per_s: float
    seconds: float
    cpu_s: dict[str, float]
    lag_max: int
    asked_per_s: float
    broken: list[str]
    receipts: list[dict[str, Any]]
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


def stages(report: Report) -> dict[str, dict[str, int]]:
    """What was compared in each stage, and the problems."""
    return {
        stage: {"compared": report.compared[stage], **{name: report.problems[stage][name] for name in PROBLEMS}}
        for stage in STAGES
    }


def print_verdict(console: Console, verdict: Verdict) -> None:
    table = Table(title="every acknowledged event against all that came of it", title_justify="left")
    for column in ("", "compared", *PROBLEMS):
        table.add_column(column, justify="right" if column else "left")
    for stage, numbers in verdict.stages.items():
        problems = [f"[{'bold red' if numbers[name] else 'green'}]{numbers[name]}[/]" for name in PROBLEMS]
        table.add_row(stage, f"{numbers['compared']}", *problems)
    console.print(table)
    console.print(_summary(verdict), soft_wrap=True)
    print_details(console, verdict)
    if verdict.late:
        console.print(f"{verdict.late} events reached Kafka later than the {LATE / 1000:g} s for which rules wait.")
    console.print("[green]All as the model says.[/]" if verdict.ok else "[bold red]The demo failed.[/]")


def _summary(verdict: Verdict) -> str:
    delay = f"delay P50 {verdict.delay_s['p50']:.2f} s, P99 {verdict.delay_s['p99']:.2f} s"
    hop = f"P50 {verdict.first_hop_s['p50']:.3f} s, P99 {verdict.first_hop_s['p99']:.3f} s"
    repeats = (
        f"{verdict.retries} requests sent again, {verdict.copies} events stored twice, {verdict.repeated} repeated"
    )
    return (
        f"{verdict.events} events of {verdict.persons} persons, {verdict.rate_per_s:.0f} actions/s; {verdict.changes}"
        f" changes, {delay}; first hop {hop}; {verdict.members} members; {repeats} by the first hop, {verdict.refused}"
        " bad requests refused"
    )
