"""What RegexRouter costs for a record of a sink: beside Python's `re`, with topics that repeat and topics that differ.

    python benchmarks/regular_expressions.py

Each line is an expression: microseconds for a record with `re` (two matches, without a bound), with a topic that the
step has seen, and with one that it has not; the best of five runs.
"""

from __future__ import annotations

import re
import timeit
from collections.abc import Callable

from penstock.connect.records.record import NOTHING, ConnectRecord
from penstock.connect.transforms.routing import regex_router

RECORDS = 900  # fewer than the step keeps
CASES = {r"shop\.(.*)": "$1", r"([a-z]+)\.([a-z_]+)": "$2", r"(?!internal).*": "all", r"\p{Lower}++[.](.*)": "$1"}


def record(topic: str) -> ConnectRecord:
    return ConnectRecord(topic, 0, 0, 0, NOTHING, NOTHING, ())


def micros(run: Callable[[], object]) -> float:
    return min(timeit.repeat(run, number=1, repeat=5)) / RECORDS * 1e6


def unbounded(pattern: str) -> Callable[[ConnectRecord], ConnectRecord]:
    compiled = re.compile(pattern.replace(r"\p{Lower}", "[a-z]"), re.ASCII)

    def step(one: ConnectRecord) -> ConnectRecord:
        found = compiled.fullmatch(one.topic)
        return one._replace(topic=compiled.sub("new", one.topic, count=1)) if found else one

    return step


def figures(pattern: str, replacement: str) -> tuple[float, float, float]:
    same = [record("shop.orders")] * RECORDS
    different = [record(f"shop.{'o' * (number % 30)}_{number}") for number in range(RECORDS)]
    options = {"regex": pattern, "replacement": replacement}
    plain, seen = unbounded(pattern), regex_router(options)
    return (
        micros(lambda: [plain(one) for one in same]),
        micros(lambda: [seen(one) for one in same]),
        micros(lambda: [*map(regex_router(options), different)]),
    )


def main() -> None:
    print(f"{'expression':24} {'re':>8} {'seen':>8} {'new':>8}")
    for pattern, replacement in CASES.items():
        print(f"{pattern:24} " + " ".join(f"{figure:8.2f}" for figure in figures(pattern, replacement)))


if __name__ == "__main__":
    main()
