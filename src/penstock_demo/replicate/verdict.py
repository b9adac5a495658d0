"""The result of the demo: its numbers as one object, and as a table with examples of what differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock_demo.replicate.both_sides import PROBLEMS
from penstock_demo.verdict import print_details


@dataclass
class Verdict:
    """What the demo found.

    `writes` are acknowledged requests. `tables` has for each table what `penstock verify` said, and `rows`, `lost`,
    `extra`, `wrong` and `misdated` are those of the driver's own comparison. `repaired` are the rows that `penstock
    verify --repair` found and mended after the demo had added one to the target. Delays are from the time of a pulse's
    write to the look at the target that shows it, without the warm-up. `cpu_s` is the CPU time of each part during the
    load.
    """

    writes: int
    rows: int
    lost: int
    extra: int
    wrong: int
    misdated: int
    tables: dict[str, str]
    repaired: int
    delay_p50_s: float
    delay_p99_s: float
    delay_max_s: float
    rate_per_s: float
    seconds: float
    retries: int
    cpu_s: dict[str, float]
    asked_per_s: float | None
    broken: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        differ = self.lost or self.extra or self.wrong or self.misdated
        return not differ and self.repaired == 1 and all(result == "equal" for result in self.tables.values())


def print_verdict(console: Console, verdict: Verdict) -> None:
    table = Table(title="every row of the source against every row of the target", title_justify="left")
    table.show_header = False
    table.add_row("writes acknowledged", f"{verdict.writes}")
    for name, result in verdict.tables.items():
        table.add_row(f"penstock verify, {name}", f"[{'green' if result == 'equal' else 'bold red'}]{result}[/]")
    table.add_row("rows read by the driver", f"{verdict.rows}")
    for problem in PROBLEMS:
        count = getattr(verdict, problem)
        table.add_row(problem, f"[{'bold red' if count else 'green'}]{count}[/]")
    table.add_row("a row added to the target", "found and repaired" if verdict.repaired == 1 else "[bold red]missed[/]")
    table.add_row("delay P50, P99", f"{verdict.delay_p50_s:.2f} s, {verdict.delay_p99_s:.2f} s")
    table.add_row("rate", f"{verdict.rate_per_s:.0f} writes/s")
    console.print(table)
    print_details(console, verdict)
    console.print("[green]Both sides are equal.[/]" if verdict.ok else "[bold red]The demo failed.[/]")
