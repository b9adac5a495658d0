"""Our Kafka producer beside librdkafka, Kafka's Java client, aiokafka and kafka-python, on one cluster, in one run.

    python benchmarks/wire.py --json wire.json
    python benchmarks/wire.py --published

Cases are named <path>/<brokers>/<bytes>/<acks>/<compression>. `table` is an Arrow table handed over at once, beside
the fastest way each peer has; `future` gives a future for each record. `ceiling` sends batches made beforehand, without
a client's work: what the brokers take. With three brokers and acks=all each record has three replicas, else one.
Rates are records a second, CPU is the client's own; `ratio` is over librdkafka's rate in `table` (its C benchmark if
`--rdkafka-performance` tells where it is, else confluent-kafka) and over aiokafka's in `future`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import _kafka_clients as clients
from _kafka_clients import Case, Client
from _measure import Row, Run, import_test_support, report, rows_of, turns

PARTITIONS = 4
PER_MESSAGE = 10
"""How many times fewer records the clients are given that work for each record: they are that much slower."""

PUBLISHED = [
    (1, 10, 1.50, 1.13, 1.00),
    (1, 50, 1.32, 1.04, 1.31),
    (1, 100, 0.979, 0.838, 0.862),
    (1, 1000, 0.208, 0.184, 0.194),
    (3, 10, 2.00, 1.35, 0.96),
    (3, 100, 1.44, 1.11, 1.01),
    (3, 1000, 0.340, 0.324, 0.321),
]
"""Brokers, bytes, and million records a second of the Seastar client, the Java client and librdkafka, as published."""

PENSTOCK, JAVA, LIBRDKAFKA, CONFLUENT = "penstock", "java", "librdkafka", "confluent-kafka"


def tables(librdkafka: Path | None) -> dict[str, Client]:
    """The subjects of `table`; the second is the one to compare with."""
    native = {LIBRDKAFKA: clients.rdkafka_performance(librdkafka)} if librdkafka else {}
    return {PENSTOCK: clients.table} | native | {CONFLUENT: clients.confluent, JAVA: clients.java}


FUTURES: dict[str, Client] = {
    PENSTOCK: clients.future,
    "aiokafka": clients.aiokafka,
    "kafka-python": clients.kafka_python,
}


@contextmanager
def cluster(brokers: int) -> Iterator[str]:
    """The addresses of brokers that are compiled and have memory as in production, unlike those of `penstock up`."""
    import_test_support()
    from kafka_cluster import kafka_cluster

    properties = "file.delete.delay.ms=500\nlog.segment.delete.delay.ms=500\nlog.segment.bytes=268435456\n"
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        kafka_cluster(Path(folder), brokers=brokers, properties=properties, java_options=["-Xmx1g"]) as made,
    ):
        yield made.servers


def measure(kind: str, case: Case, subjects: dict[str, Client], rounds: int) -> list[Row]:
    """Medians of all subjects, which take turns; the ratio is over the second one."""
    replicas = case.servers.count(",") + 1 if case.acks == "all" else 1
    runs: dict[str, list[Run]] = {name: [] for name in subjects}
    for number, name in turns(subjects, rounds + 1):
        with clients.fresh_topic(case.servers, case.partitions, replicas):
            run = subjects[name](case)
        if number:  # the first round warms up brokers and compiled code
            runs[name].append(run)
    return rows_of(kind, runs, list(subjects)[1])


def matrix(options: argparse.Namespace) -> list[Row]:
    """Every case that was asked for; each is printed when it is measured."""
    rows: list[Row] = []
    for brokers in options.brokers:
        with cluster(brokers) as servers:
            for size in options.sizes:
                count = min(options.most, options.megabytes * 1_000_000 // size)
                for acks in options.acks:
                    plain = Case(servers, PARTITIONS * brokers, size, acks, "none", count)
                    if "table" in options.paths:
                        for compression in options.compression:
                            case = Case(servers, PARTITIONS * brokers, size, acks, compression, count)
                            subjects = tables(options.rdkafka_performance) | {"ceiling": clients.ceiling}
                            rows += _said(measure(f"table/{brokers}/{case.name}", case, subjects, options.rounds))
                    if "future" in options.paths:
                        few = plain.divided(PER_MESSAGE)
                        rows += _said(measure(f"future/{brokers}/{plain.name}", few, FUTURES, options.rounds))
    return rows


def _said(rows: list[Row]) -> list[Row]:
    report(rows, None)
    return rows


def published(options: argparse.Namespace) -> None:
    """The table that the Seastar client's authors published, measured anew with our client in its place."""
    print("brokers  bytes |  M records/s                     |  over Java, librdkafka | as published")
    print("               |  penstock      java  librdkafka  |  penstock               | Seastar")
    for brokers in (1, 3):
        with cluster(brokers) as servers:
            for _, size, seastar, java, native in (row for row in PUBLISHED if row[0] == brokers):
                count = min(options.most, options.megabytes * 1_000_000 // size)
                case = Case(servers, PARTITIONS * brokers, size, "1", "none", count)
                subjects = tables(options.rdkafka_performance)
                rows = measure("published", case, subjects, options.rounds)
                rate = {row.subject: row.rate_per_s / 1e6 for row in rows}
                peer = max(rate.get(LIBRDKAFKA, 0.0), rate[CONFLUENT])
                print(
                    f"{brokers:7} {size:6} | {rate[PENSTOCK]:9.3f} {rate[JAVA]:9.3f} {peer:11.3f}  |"
                    f" {rate[PENSTOCK] / rate[JAVA]:9.2f}x {rate[PENSTOCK] / peer:10.2f}x |"
                    f" {seastar / java:6.2f}x {seastar / native:6.2f}x",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each case (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=400, help="payload of a run (default: %(default)s)")
    parser.add_argument("--most", type=int, default=8_000_000, help="most records of a run (default: %(default)s)")
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 3], choices=[1, 3])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50, 100, 1000], help="bytes of a value")
    parser.add_argument("--acks", nargs="+", default=["1", "all"], choices=["1", "all"])
    parser.add_argument("--compression", nargs="+", default=["none", "lz4", "zstd"])
    parser.add_argument("--paths", nargs="+", default=["table", "future"], choices=["table", "future"])
    parser.add_argument("--rdkafka-performance", type=Path, help="librdkafka's benchmark, if it was built here")
    parser.add_argument("--published", action="store_true", help="print the Seastar client's table, measured anew")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if options.published:
        published(options)
    else:
        rows = matrix(options)
        if options.json:
            report(rows, options.json)


if __name__ == "__main__":
    main()
