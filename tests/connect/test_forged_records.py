"""Records in a group's topics that no worker of Penstock wrote: what they can do, and what they cannot."""

from __future__ import annotations

import json
import logging
from concurrent.futures import Future
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock.connect.group import states
from penstock.connect.group.division import TaskId
from penstock.connect.group.group_configs import MOST_TASKS, GroupConfigs
from penstock.connect.group.kafka_positions import KafkaPositions
from penstock.connect.group.states import GroupStates, ReportedStatus, of_task
from penstock.connect.worker.running_task import FAILED, RUNNING
from penstock.kafka.compacted_topic import Seen
from penstock.process.log_lines import LONGEST_QUOTED, quoted

Json = Any
LARGE = "x" * 100_000 + "\n"


class Topic:
    """A topic whose records are seen at once."""

    cluster_id = "c"

    def __init__(self, seen: Seen) -> None:
        self._seen, self.offset = seen, 0
        self.written: list[tuple[str, bytes | None]] = []

    def start(self) -> None: ...

    def forged(self, key: str, value: Json) -> None:
        self._seen(key, value if isinstance(value, bytes | None) else json.dumps(value).encode(), self.offset)
        self.offset += 1

    def send(self, key: str, value: bytes | None) -> Future[Any]:
        self.written.append((key, value))
        self.forged(key, value)
        return Future()

    def put(self, key: str, value: bytes | None) -> None:
        self.send(key, value)


def topic_of(shared: GroupConfigs | GroupStates | KafkaPositions) -> Topic:
    return cast(Topic, shared._topic)


@pytest.fixture
def configs() -> GroupConfigs:
    made = GroupConfigs(cast(Any, Topic))
    made.start()
    return made


def connector(configs: GroupConfigs, name: str = "c", **properties: str) -> None:
    configs.put(
        name, {"connector.class": "FileStreamSink"} | {key.replace("_", "."): v for key, v in properties.items()}
    )


@pytest.mark.parametrize(("given", "most"), [({}, 1), ({"tasks_max": "2"}, 2), ({"tasks_max": "${env:N}"}, MOST_TASKS)])
def test_a_connector_has_at_most_tasks_max_tasks(configs: GroupConfigs, given: dict[str, str], most: int) -> None:
    connector(configs, **given)
    configs.divide("c", [("t",)] * most)
    assert len(configs.tasks()) == most and cast(Any, configs.of("c")).is_divided
    topic_of(configs).forged("commit-c", {"tasks": 10_000, "shares": [["t"]] * 10_000})
    # It does not count as a division, so the connector's worker divides it again.
    assert configs.tasks() == [] and not cast(Any, configs.of("c")).is_divided
    configs.divide("c", [("t",)])
    assert configs.tasks() == [TaskId("c", topic_of(configs).offset - 1, 0)]


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "n" * 501])
def test_a_name_that_the_rest_api_refuses_is_no_connector(configs: GroupConfigs, name: str) -> None:
    connector(configs)
    connector(configs, name)
    assert list(configs.known()) == ["c"]


def test_a_worker_repeats_its_own_state_when_the_topic_says_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PAUSE", 0.0)
    made, key = GroupStates(cast(Any, Topic)), of_task("c", 0)
    own, topic = ReportedStatus(RUNNING, "w:1"), topic_of(made)
    made.report(key, own)
    for forged in ({"state": FAILED, "worker_id": "nobody:1", "trace": LARGE * 10}, {}, None, b"\xff", [1]):
        topic.forged(f"status-{key}", forged)
        assert made.of(key) != own
        made.report(key, own)
        assert made.of(key) == own
    count = len(topic.written)
    made.report(key, own)
    assert len(topic.written) == count == 6
    # What is larger than what is read is not another state.
    made.report(key, ReportedStatus(FAILED, "w:1", LARGE * 10))
    made.report(key, ReportedStatus(FAILED, "w:1", LARGE * 10))
    assert len(topic.written) == count + 1


def test_a_repeated_state_does_not_answer_each_forged_record() -> None:
    made, key = GroupStates(cast(Any, Topic)), of_task("c", 0)
    made.report(key, ReportedStatus(RUNNING, "w:1"))
    topic_of(made).forged(f"status-{key}", {"state": FAILED, "worker_id": "nobody:1"})
    made.report(key, ReportedStatus(RUNNING, "w:1"))
    # Two workers that both claim a task would else write without end.
    assert len(topic_of(made).written) == 1


KEYS = st.sampled_from(
    ["connector-", "target-state-", "commit-", "restart-connector-", "status-task-", "", '["c", ', "["]
)
TEXTS = st.sampled_from([LARGE, "two\nlines", "\r\x1b[2J", "a", "\u2028", "\ud7ff"]) | st.text(max_size=5)


def forged_values() -> st.SearchStrategy[Json]:
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
    inner = st.recursive(
        plain, lambda of: st.lists(of, max_size=3) | st.dictionaries(TEXTS, of, max_size=3), max_leaves=5
    )
    names = ("properties", "state", "shares", "tasks", "task", "worker_id", "trace", "window_start", "end", "start")
    return st.binary(max_size=10) | inner | st.dictionaries(st.sampled_from(names), inner, max_size=4)


def forged_keys() -> st.SearchStrategy[str]:
    partition = {"keyspace_name": TEXTS, "table_name": TEXTS, "vnode_id": TEXTS, "generation_start": TEXTS}
    places = st.tuples(TEXTS, st.fixed_dictionaries(partition) | st.dictionaries(st.sampled_from(["reads"]), TEXTS))
    return st.builds(str.__add__, KEYS, TEXTS) | places.map(json.dumps)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.tuples(forged_keys(), forged_values()), min_size=1, max_size=4))
def test_a_record_stops_nothing_and_is_at_most_one_short_line(
    caplog: pytest.LogCaptureFixture, records: list[tuple[str, Json]]
) -> None:
    caplog.clear()
    made: list[GroupConfigs | GroupStates | KafkaPositions] = [
        GroupConfigs(cast(Any, Topic)),
        GroupStates(cast(Any, Topic)),
        KafkaPositions(cast(Any, Topic)),
    ]
    with caplog.at_level(logging.INFO):
        for shared in made:
            shared.start()
            for key, value in records:
                topic_of(shared).forged(key, value)
    for line in caplog.messages:
        assert line.isprintable() and len(line) < 1000, line[:2000]


@pytest.mark.parametrize("text", ["a", "it's", LARGE, "two\nlines", "\x00", "\u2028", "\ud800"])
def test_a_quoted_text_is_within_one_line(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable() and len(shown) < 6 * LONGEST_QUOTED
    assert repr(text[:LONGEST_QUOTED])[:-1] in shown and (len(text) <= LONGEST_QUOTED or shown.endswith("..."))
