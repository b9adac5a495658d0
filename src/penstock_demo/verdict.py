"""The result of a demo: its numbers as one object, and as a table with examples of what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from penstock_demo import consume, journal
from penstock_demo.load import Status
from penstock_demo.parts import Bucket
from penstock_demo.reconcile import Report
from penstock_demo.view import cores, cpu_text
from penstock_demo.watch import Watch, percentile

PROBLEMS = ("lost", "duplicated", "misordered", "wrong")


@dataclass
class Verdict:
    """What a demo found.

    `writes` are acknowledged requests, `events` distinct events; a tombstone is not counted as an event. Delays are
    from a write's timestamp to the consumer's receipt, without the warm-up. `late` writes took longer than the
    reader's confidence window. `cpu_s` is the CPU time of each part during the load. `asked_per_s` is the rate of the
    load, None for as fast as answers come. `told_p99_s` is the bucket of the pipeline's own metrics that has P99 of all
    delays up to Kafka's acknowledgement, in seconds, None if it is not known; `exact_p99_s` is P99 of all delays up to
    the consumer's receipt. Both count the warm-up.
    """

    writes: int
    events: int
    lost: int
    duplicated: int
    misordered: int
    wrong: int
    replayed: int
    tombstones: int
    delay_p50_s: float
    delay_p99_s: float
    delay_max_s: float
    rate_per_s: float
    events_per_s: float
    seconds: float
    warm_up_writes: int
    retries: int
    late: int
    cpu_s: dict[str, float]
    asked_per_s: float | None = None
    lag_max: int = 0
    told_p99_s: tuple[float, float] | None = None
    exact_p99_s: float = 0.0
    broken: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicated or self.misordered or self.wrong)


def judge(report: Report, status: Status, reader: Watch, cpu: dict[str, float]) -> Verdict:
    """Put a report and the measured times into one object."""
    measured = reader.delays(status.started_us)
    last = max(reader.times[1::2], default=0)
    took = max(last - status.started_us, 1) / 1e6
    return Verdict(
        writes=status.writes,
        events=report.events,
        lost=report.lost,
        duplicated=report.duplicated,
        misordered=report.misordered,
        wrong=report.wrong,
        replayed=report.replayed,
        tombstones=report.tombstones,
        delay_p50_s=percentile(measured, 0.5),
        delay_p99_s=percentile(measured, 0.99),
        delay_max_s=percentile(measured, 1.0),
        rate_per_s=round((status.writes - status.warm_up_writes) / max(status.seconds, 1e-3), 1),
        events_per_s=round(len(measured) / took, 1),
        seconds=round(status.seconds, 2),
        warm_up_writes=status.warm_up_writes,
        retries=status.retries,
        late=status.late,
        cpu_s=cpu,
    )


def told_p99(buckets: Sequence[Bucket]) -> tuple[float, float] | None:
    """The bounds of the bucket that `histogram_quantile(0.99)` falls into; None without rows."""
    rows = buckets[-1].rows if buckets else 0
    return next(((one.least, one.most) for one in buckets if rows and one.rows >= 0.99 * rows), None)


def examples(report: Report, written: Path, servers: str) -> list[dict[str, Any]]:
    """The report's examples, with the journal's line and the record's value."""
    lines = {example.line for example in report.examples}
    texts = {number: text.decode() for number, text in enumerate(journal.read(written)) if number in lines}
    got = iter(consume.fetch(servers, [example.record for example in report.examples if example.record]))
    return [
        {
            "problem": example.problem,
            "table": example.table,
            "key": list(example.key),
            "expected": None if example.line is None else texts[example.line],
            "got": example.record and next(got),
        }
        for example in report.examples
    ]


def print_verdict(console: Console, verdict: Verdict) -> None:
    table = Table(title="every write against every event", title_justify="left", show_header=False)
    table.add_row("writes acknowledged", f"{verdict.writes}")
    table.add_row("events received", f"{verdict.events}")
    for problem in PROBLEMS:
        count = getattr(verdict, problem)
        table.add_row(problem, f"[{'bold red' if count else 'green'}]{count}[/]")
    if verdict.broken:
        table.add_row("replayed after the break", f"{verdict.replayed}")
    table.add_row("delay P50, P99", f"{verdict.delay_p50_s:.2f} s, {verdict.delay_p99_s:.2f} s")
    if verdict.told_p99_s and not verdict.broken:
        least, most = verdict.told_p99_s
        table.add_row("with the warm-up, P99", f"{verdict.exact_p99_s:.2f} s; in the metrics {least:g} to {most:g} s")
    table.add_row("rate", f"{verdict.rate_per_s:.0f} writes/s, {verdict.events_per_s:.0f} events/s")
    console.print(table)
    print_details(console, verdict)
    if verdict.late and verdict.lost:
        console.print(f"{verdict.late} writes took longer than the confidence window of the reader.")
    console.print("[green]Nothing lost.[/]" if verdict.ok else "[bold red]The demo failed.[/]")


class Measured(Protocol):
    """What the verdicts of all demos have."""

    cpu_s: dict[str, float]
    seconds: float
    rate_per_s: float
    examples: list[dict[str, Any]]

    @property
    def asked_per_s(self) -> float | None: ...


def print_details(console: Console, verdict: Measured) -> None:
    """What was slow, and examples of what went wrong."""
    for line in slow(verdict.cpu_s, verdict.seconds, verdict.rate_per_s, verdict.asked_per_s):
        console.print(line, soft_wrap=True)
    for example in verdict.examples:
        console.print(example, soft_wrap=True)


BUSY = 0.85
"""The share of all cores from which on they are the limit."""
SHORT = 0.95
"""The share of the asked rate below which it was not reached."""


def slow(cpu_s: Mapping[str, float], seconds: float, rate: float, asked: float | None) -> Iterator[str]:
    """What was slow in a load of these seconds, and why: the CPU seconds of each part are known."""
    used = {name: one / max(seconds, 1e-3) for name, one in cpu_s.items()}
    used = dict(sorted(used.items(), key=lambda item: item[1], reverse=True))
    total = sum(used.values())
    yield f"CPU while the load ran: {cpu_text(used)}"
    busiest = next(iter(used), "")
    if asked and rate < SHORT * asked:
        yield f"{rate:.0f} of the {asked:.0f} asked for per second were done."
    if total >= BUSY * cores():
        share = f"{busiest} has {used[busiest] / total:.0%} of the CPU"
        yield f"The cores are the limit: {share}. On a machine with more, or at a lower --rate, delays are shorter."
