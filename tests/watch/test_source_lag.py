"""The lag of a source, step by step: batches and looks at times that the test sets."""

from __future__ import annotations

import pytest

from penstock.watch.source_lag import BACK, SourceLag


def ends(at: int, partition: int = 0) -> dict[str, dict[str, int]]:
    return {"clicks": {str(partition): at}}


def test_a_topic_that_is_created_again_has_no_lag_when_it_is_read_to_its_end() -> None:
    lag = SourceLag()
    lag.planned(0.0, ends(0), ends(0))
    lag.planned(10.0, ends(500), ends(1000))
    assert lag.seconds(20.0, idle=False) == 20.0
    # Always busy, so that no look finds it idle; far from the end that the old topic had.
    for number in range(1, 10):
        lag.planned(20.0 + number, ends(10 * number), ends(10 * number))
    assert (lag.records, lag.seconds(30.0, idle=False)) == (0, 1.0)


def test_a_partition_that_is_gone_is_not_waited_for() -> None:
    lag = SourceLag()
    both = {"clicks": {"0": 9, "1": 9}}
    lag.planned(0.0, ends(9), both)
    lag.planned(5.0, ends(9), ends(9))
    assert (lag.records, lag.seconds(6.0, idle=False)) == (0, 1.0)


def test_a_partition_that_is_added_counts_from_its_first_record() -> None:
    lag = SourceLag()
    lag.planned(0.0, ends(9), ends(9))
    lag.planned(5.0, ends(9), {"clicks": {"0": 9, "1": 4}})
    assert (lag.records, lag.seconds(6.0, idle=False)) == (4, 6.0)


@pytest.mark.parametrize("idle", [False, True])
def test_a_clock_that_is_set_back_does_not_hide_the_lag(idle: bool) -> None:
    lag = SourceLag()
    lag.planned(10_000.0, ends(9), ends(9))
    back = 10_000.0 - 3600
    if idle:
        lag.idle(back)
    else:
        lag.planned(back, ends(9), ends(500))
    lag.planned(back + 1, ends(20), ends(900))
    assert lag.seconds(back + 61, idle=False) == 61.0


def test_a_look_a_moment_after_a_batch_is_no_clock_that_was_set_back() -> None:
    lag = SourceLag()
    lag.planned(100.0, ends(9), ends(9))
    lag.idle(101.0)
    lag.planned(101.0 - BACK / 2, ends(9), ends(10))
    assert lag.read_until == 101.0
