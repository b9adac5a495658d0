"""An update: this build goes on where an earlier one stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from earlier_builds import QUERIES, arrive, restored, run
from ingest_server import ingest
from kafka_topics import new_topics, stored
from pyspark.sql import SparkSession
from waiting import until

from penstock.local.services import Services

ARCHIVE = Path(__file__).parents[1] / "data/earlier_build.tar.gz"
"""What the last build wrote before modules and classes got the names and places that they have now."""
TOPICS = {"earlier-clicks": 31, "earlier-views": 30}
"""The topics of the spool, and how many events it has for each."""
EXPECTED: dict[str, set[tuple[Any, ...]]] = {
    "windows": {("a", 3, 12, False), ("b", 3, 17, False)},
    "sessions": {("a", 3, False), ("b", 3, False)},
    "tables": {("a", 3, 8, None), ("b", 1, 9, None), ("a", None, 1, 1), ("b", None, 9, 3), ("a", None, 1, 4)},
    "members": {
        ("1", "twice", "enter"),
        ("3", "large", "enter"),
        ("1", "large", "expire"),
        ("2", "large", "expire"),
        ("3", "large", "expire"),
    },
}
"""What each query writes of a third batch; a run of this build over all three writes the same."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = restored(ARCHIVE, tmp_path_factory.mktemp("earlier"))
    arrive(made / "in", 3, [(1, "a", 30, 1), (3, "b", 40, 9), (4, "a", 200, 1)])
    return made


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_goes_on_with_the_state_of_an_earlier_build(spark: SparkSession, folder: Path, name: str) -> None:
    out = folder / name / "out"
    before = set(out.rglob("*.parquet"))
    run(spark, folder, name)
    written = ds.dataset([str(file) for file in out.rglob("*.parquet") if file not in before]).to_table().to_pylist()
    assert len(written) == len(EXPECTED[name])
    assert {tuple(row.values()) for row in written} == EXPECTED[name]


def test_a_spool_of_an_earlier_build_is_replayed(services: Services, folder: Path, tmp_path: Path) -> None:
    with new_topics(services.kafka, list(TOPICS), 1):
        options = "--servers", services.kafka, "--topics", ",".join(TOPICS), "--spool", folder / "spool"
        with ingest(tmp_path, *options):
            events = {topic: of_topic(services.kafka, topic, count) for topic, count in TOPICS.items()}
    for topic, count in TOPICS.items():
        assert [event["id"] for event in events[topic]] == list(range(count))
        assert {event["on"] for event in events[topic]} == {topic}
    assert events["earlier-clicks"][-1]["text"] == "ä€𐍈"


def of_topic(servers: str, topic: str, count: int) -> list[dict[str, Any]]:
    """The events of a topic when it has so many."""
    until(lambda: len(stored(servers, topic, 1)[0]) >= count, f"{count} events in {topic}")
    return [json.loads(event) for event in stored(servers, topic, 1)[0]]
