"""What the console takes of a `/status`, and what it says is wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from console_process import status
from hypothesis import given, strategies as st

from penstock.console.reading import run_polling
from penstock.console.reading.overview import overview, problems
from penstock.console.reading.run_polling import Run
from penstock.console.reading.run_status import LINE, WORD, taken
from penstock.serve.http_client import Address

HERE = Address("http://127.0.0.1:9400", None)


def query(**more: Any) -> dict[str, Any]:
    """The query of a status with other fields."""
    found: dict[str, Any] = status()["queries"][0] | more
    return found


def known(told: dict[str, Any]) -> dict[str, Any]:
    """What is taken of a right status."""
    found = taken(told)
    assert found is not None
    return found


def shown(**more: Any) -> dict[str, Any]:
    """A run as the overview has it."""
    found = known(status(**more))
    return found | {"id": found["name"], "url": HERE.url, "reachable": True, "problem": ""}


def test_a_status_is_taken_without_its_history_unless_that_is_asked_for() -> None:
    short, whole = taken(status()), taken(status(), history=True)
    assert short is not None and whole is not None
    assert "history" not in short["queries"][0]
    assert whole["queries"][0]["history"] == status()["queries"][0]["history"]
    assert short["queries"][0]["sources"] == status()["queries"][0]["sources"]


@pytest.mark.parametrize(
    "wrong", [None, [], "text", 1, {}, {"kind": "run"}, {**status(), "name": 3}, status(state="odd")]
)
def test_what_is_no_status_is_refused(wrong: Any) -> None:
    assert taken(wrong) is None


def test_fields_of_other_types_and_unknown_fields_are_left_out() -> None:
    found = taken(
        status(
            command=["rm"],
            pid=True,
            evil="<script>",
            queries=[
                query(batch="7", target_seconds=float("nan"), rows_total=1 << 80, sources=[{"node": "x"}, 5, None]),
                {"name": "no state"},
                "text",
            ],
            errors=[{"what": 5}, {"what": "bad", "trace": "t" * 100_000}] * 30,
        )
    )
    assert found is not None
    assert not {"command", "pid", "evil"} & set(found)
    (one,) = found["queries"]
    assert not {"batch", "target_seconds", "rows_total"} & set(one)
    assert one["sources"] == []
    assert 0 < len(found["errors"]) <= 20
    assert len(found["errors"][0]["trace"]) == 64 << 10


def test_long_strings_and_lists_are_cut() -> None:
    found = taken(status(name="n" * 9999, waits_for="w" * 99_999, queries=[query()] * 3000), history=True)
    assert found is not None
    assert (len(found["name"]), len(found["waits_for"]), len(found["queries"])) == (WORD, LINE, 500)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["queries", "sources", "state", "name", "delay", "graph", "x"]), inner, max_size=4
        )
    ),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(sorted({*status(), "jvm", "ingest", "connectors"})), values))
def test_any_json_gives_a_page_or_nothing(more: dict[str, Any]) -> None:
    found = taken({**status(), **more}, history=True)
    if found is not None:
        run = Run(HERE, None, status=found, reachable=True)
        # Valid JSON, without NaN, which browsers refuse.
        json.dumps(overview({"a": run}, [], {}), allow_nan=False)


def test_problems_are_sorted_worst_first_and_say_what_to_do() -> None:
    source = query()["sources"][0]
    runs = [
        shown(name="stops", state="stopped", queries=[query(state="stopped", sources=[source | {"lag_records": 7}])]),
        shown(name="waits", state="waiting", queries=[query(state="waiting", waits_for="Kafka at k:1 for 12 s")]),
        shown(name="late", queries=[query(sources=[source | {"lag_seconds": 61.0}])]),
        shown(name="later", queries=[query(sources=[source | {"lag_seconds": 99.0}])]),
        shown(name="fails", state="failed", queries=[query(state="failed", problem="a bug", next="fix it")]),
        shown(name="fine"),
        shown(name="gone") | {"reachable": False, "problem": "Connection refused"},
    ]
    found = problems(runs)
    assert [(one["severity"], one["run"]) for one in found] == [
        ("failed", "fails"),
        ("failed", "gone"),
        ("behind", "later"),
        ("behind", "late"),
        ("waiting", "waits"),
        ("stopped", "stops"),
    ]
    assert found[0]["what"] == "orders failed: a bug" and found[0]["next"] == "fix it"
    assert "Connection refused" in found[1]["what"]
    assert found[2]["what"] == "orders is 99.0 s behind, its target is 60 s"
    assert found[4]["what"] == "orders waits for Kafka at k:1 for 12 s"
    assert found[5]["what"] == "orders is stopped, 7 records behind"
    assert all(one["next"] for one in found)


def test_a_stopped_query_of_a_change_log_is_told_by_the_age_of_its_position() -> None:
    old, fresh = ({"name": "table shop.orders", "lag_seconds": lag} for lag in (7200.0, 5.0))
    assert problems([shown(state="stopped", queries=[query(state="stopped", sources=[fresh])])]) == []
    (found,) = problems([shown(state="stopped", queries=[query(state="stopped", sources=[old])])])
    assert found["what"] == "orders is stopped, its position is 7,200 s old"


def test_a_query_that_is_about_to_lose_records_is_behind_whatever_its_target() -> None:
    source = query()["sources"][0] | {"lag_records": 9, "lag_seconds": 50.0}
    safe, short = (source | {"retention_left_seconds": left} for left in (60.0, 20.0))
    assert problems([shown(queries=[query(sources=[safe])])]) == []
    (found,) = problems([shown(queries=[query(sources=[safe, short])])])
    assert found["severity"] == "behind" and "deletes what it has not read in 20 s" in found["what"]
    assert "retention.ms" in found["next"]


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        ("TypeError: no\n  at x", ": TypeError: no"),
        ("java.lang.A: b\n\tat x\nCaused by: java.lang.C: d\n\tat y\n\t... 2 more", ": java.lang.C: d"),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n", ": ValueError: no"),
        ("", ""),
    ],
)
def test_a_failed_task_of_a_connector_is_a_problem_with_the_line_that_says_why(trace: str, why: str) -> None:
    task = {"id": 0, "state": "FAILED", "trace": trace}
    run = shown(kind="connect", queries=[], connectors=[{"name": "cdc", "state": "RUNNING", "tasks": [task]}])
    (found,) = problems([run])
    assert found["what"] == f"task 0 of connector cdc failed{why}"


def test_edges_have_the_rates_of_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(HERE, None)
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(run_polling, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for rows in (10, 50):
        source, sink = query()["sources"][0], query()["sinks"][0]
        now = query(sources=[source | {"rows_total": rows}], sinks=[sink | {"rows_total": rows // 2}])
        run.take(b"", known(status(queries=[now])))
    graph = overview({"orders": run}, [], {})["graph"]
    assert {(one["source"], one["target"]): one["rate"] for one in graph["edges"]} == {
        ("topic:in", "query:orders"): 20.0,
        ("query:orders", "topic:out"): 10.0,
    }


def test_the_rows_of_a_sink_with_several_topics_are_on_none_of_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(HERE, None)
    monkeypatch.setattr(run_polling, "time", SimpleNamespace(monotonic=iter([10.0, 12.0]).__next__))
    for rows in (10, 50):
        sink = query()["sinks"][0] | {"rows_total": rows, "other_nodes": 1}
        told = status(queries=[query(sinks=[sink], rows_per_second=20.0)])
        told["graph"]["nodes"].append(told["graph"]["nodes"][-1] | {"id": "topic:more", "name": "more"})
        told["graph"]["edges"].append({"source": "query:orders", "target": "topic:more"})
        run.take(b"", known(told))
    shown = overview({"orders": run}, [], {})
    assert [one["target"] for one in shown["graph"]["edges"] if "rate" in one] == ["query:orders"]
    assert shown["runs"][0]["queries"][0]["rows_per_second"] == 20.0


def test_the_graphs_of_two_runs_are_joined_at_their_topics() -> None:
    first, second = status("first"), status("second")
    second["graph"]["nodes"][0] |= {"id": "topic:out", "name": "out"}
    second["graph"]["edges"][0]["source"] = "topic:out"
    runs = {}
    for one in (first, second):
        runs[one["name"]] = run = Run(HERE, None)
        run.take(b"", known(one))
    graph = overview(runs, [], {})["graph"]
    assert sorted(node["id"] for node in graph["nodes"]) == ["query:first", "query:second", "topic:in", "topic:out"]
    assert {"source": "topic:out", "target": "query:second"} in graph["edges"]
