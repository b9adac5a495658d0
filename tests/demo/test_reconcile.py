"""The proof of the demo: a good run is good, and every kind of damage is found under its own name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from hypothesis import given, strategies as st

from penstock_demo.journal import Expected
from penstock_demo.reconcile import Record, Report, reconcile

Run = tuple[list[Expected], list[Record]]
TOMBSTONE = (0, "", 0)
COUNTS = ("lost", "duplicated", "misordered", "wrong", "replayed")


def run_of(keys: list[list[str]], seed: int) -> Run:
    """A run over one table of three Kafka partitions; `keys` has the ops of each key in order (D = no tombstone)."""
    rng = Random(seed)
    expected: list[Expected] = []
    waiting: list[list[tuple[int, str, int]]] = []
    for number, ops in enumerate(keys):
        of_key = []
        for place, op in enumerate(ops):
            stamp = 1000 * place + number
            expected.append(Expected(("t", (number,), stamp, op.lower()), (stamp * 7,), op == "d", True, len(expected)))
            of_key.append((stamp, op.lower(), stamp * 7))
            if op == "d":
                of_key.append(TOMBSTONE)
        waiting.append(of_key)
    records: list[Record] = []
    offsets = [0, 0, 0]
    while any(waiting):
        number = rng.choice([n for n, of_key in enumerate(waiting) if of_key])
        partition = number % 3
        followed = waiting[number][1:2] == [TOMBSTONE]
        for stamp, op, digest in [waiting[number].pop(0) for _ in range(1 + followed)]:
            records.append(Record("t", (number,), stamp, op, digest, partition, offsets[partition], len(records)))
            offsets[partition] += 1
    return expected, records


def renumbered(records: list[Record]) -> list[Record]:
    """The records with offsets and times as if they had come in the order of the list."""
    offsets: dict[int, int] = defaultdict(int)
    again = []
    for time, record in enumerate(records):
        again.append(record._replace(offset=offsets[record.partition], appended=time))
        offsets[record.partition] += 1
    return again


def batch_start(data: st.DataObject, records: list[Record], end: int) -> int:
    """An index where a batch may begin: not between a delete and its tombstone, which are one change."""
    return data.draw(st.integers(0, end - 1).filter(lambda start: records[start].op != ""))


def counts(report: Report) -> dict[str, int]:
    return {name: getattr(report, name) for name in COUNTS if getattr(report, name)}


OPS = st.lists(st.sampled_from(["c", "u", "d", "D"]), min_size=1, max_size=8)
RUNS = st.builds(run_of, st.lists(OPS, min_size=1, max_size=6), st.integers(0, 1 << 16))


@given(RUNS)
def test_a_good_run(run: Run) -> None:
    expected, records = run
    report = reconcile(expected, records)
    assert counts(report) == {}
    assert report.ok
    assert report.events == len(expected)
    assert report.events + report.tombstones == report.records == len(records)


@given(RUNS, st.data())
def test_a_dropped_record_is_lost(run: Run, data: st.DataObject) -> None:
    expected, records = run
    del records[data.draw(st.integers(0, len(records) - 1))]
    assert counts(reconcile(expected, renumbered(records))) == {"lost": 1}


@given(RUNS, st.data())
def test_a_repeated_record_is_duplicated(run: Run, data: st.DataObject) -> None:
    expected, records = run
    source = data.draw(st.integers(0, len(records) - 1))
    records.insert(data.draw(st.integers(source + 1, len(records))), records[source])
    report = reconcile(expected, renumbered(records))
    assert counts(report) == {"duplicated": 1}
    assert report.examples[0].key == records[source].key


@given(RUNS, st.data())
def test_a_swap_within_a_key_is_misordered(run: Run, data: st.DataObject) -> None:
    expected, records = run
    pairs = [
        (a, b)
        for a in range(len(records))
        for b in range(a + 1, len(records))
        if records[a].key == records[b].key and records[a][:5] != records[b][:5]
    ]
    if not pairs:
        return
    a, b = data.draw(st.sampled_from(pairs))
    records[a], records[b] = records[b], records[a]
    report = reconcile(expected, renumbered(records))
    assert report.misordered
    assert set(counts(report)) == {"misordered"}


@given(RUNS, st.data())
def test_changed_content_is_wrong(run: Run, data: st.DataObject) -> None:
    expected, records = run
    events = [index for index, record in enumerate(records) if record.op]
    index = data.draw(st.sampled_from(events))
    records[index] = records[index]._replace(digest=-1)
    assert counts(reconcile(expected, records)) == {"wrong": 1}


CHANGES: list[Callable[[Record], Record]] = [
    lambda record: record._replace(stamp=-1),
    lambda record: record._replace(op="x"),
    lambda record: record._replace(key=("other",)),
    lambda record: record._replace(table="other"),
]


@given(RUNS, st.data(), st.sampled_from(CHANGES))
def test_a_changed_identity_is_wrong_and_lost(
    run: Run, data: st.DataObject, change: Callable[[Record], Record]
) -> None:
    expected, records = run
    events = [index for index, record in enumerate(records) if record.op]
    index = data.draw(st.sampled_from(events))
    records[index] = change(records[index])
    assert counts(reconcile(expected, records)) == {"wrong": 1, "lost": 1}


@given(RUNS, st.data())
def test_the_tail_delivered_again_after_a_break_is_a_replay(run: Run, data: st.DataObject) -> None:
    expected, records = run
    cut = data.draw(st.integers(1, len(records)))
    start = batch_start(data, records, cut)
    again = renumbered(records[:cut] + records[start:])
    assert counts(reconcile(expected, again, breaks=[cut])) == {"replayed": cut - start}
    assert counts(reconcile(expected, again, breaks=[len(again)])) == {"duplicated": cut - start}
    assert counts(reconcile(expected, again)) == {"duplicated": cut - start}


@given(RUNS, st.data())
def test_two_replays_of_one_batch(run: Run, data: st.DataObject) -> None:
    expected, records = run
    start = batch_start(data, records, len(records))
    first, second = data.draw(st.integers(start, len(records))), data.draw(st.integers(start, len(records)))
    again = renumbered(records[:first] + records[start:second] + records[start:])
    counted = counts(reconcile(expected, again, breaks=[0]))
    assert counted.get("replayed", 0) == len(again) - len(records)
    assert set(counted) <= {"replayed"}


def test_a_replay_out_of_order() -> None:
    expected, records = run_of([["c", "u", "u"]], 0)
    again = renumbered([records[0], records[1], records[1], records[0], records[2]])
    assert counts(reconcile(expected, again, breaks=[0])) == {"replayed": 2, "misordered": 1}


def test_the_second_run_of_a_batch_has_to_keep_the_order_of_a_key_too() -> None:
    expected, records = run_of([["c", "u", "u", "u"]], 0)
    again = renumbered([records[0], records[1], records[0], records[2], records[1], records[3]])
    assert counts(reconcile(expected, again, breaks=[0])) == {"replayed": 2, "misordered": 1}


def test_a_repeat_with_a_gap_before_the_cut_is_no_replay() -> None:
    expected, records = run_of([["c", "u", "u", "u"]], 0)
    again = renumbered([*records[:3], records[0], records[2], records[3]])
    assert counts(reconcile(expected, again, breaks=[0])) == {"duplicated": 2}


def test_an_attempt_without_an_answer_may_be_in_the_log_or_not() -> None:
    expected, records = run_of([["c", "d", "d"]], 0)
    expected[1] = expected[1]._replace(certain=False)
    without = [record for index, record in enumerate(records) if index not in (1, 2)]
    assert counts(reconcile(expected, records)) == {}
    assert counts(reconcile(expected, renumbered(without))) == {}
    assert counts(reconcile(expected, renumbered(records[:2] + records[3:]))) == {"lost": 1}


def test_any_of_the_images_of_a_repeated_write_is_right() -> None:
    expected, records = run_of([["c", "u"]], 0)
    expected[1] = expected[1]._replace(digests=(*expected[1].digests, 99))
    records[1] = records[1]._replace(digest=99)
    assert reconcile(expected, records).ok


def test_one_key_in_two_kafka_partitions_of_one_topic_is_compared_as_one_list() -> None:
    expected, records = run_of([["c", "u"]], 0)
    records[0] = records[0]._replace(partition=1)
    assert counts(reconcile(expected, records)) == {"misordered": 1}
