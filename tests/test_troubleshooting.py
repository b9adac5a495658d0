"""The list of all error messages is complete: raised errors are on it. docs/troubleshooting.md quotes them rightly."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cassandra.cluster import Session
from pyspark.sql import DataFrame, SparkSession

import messages
import penstock
from penstock import cdc, extras, kafka, segment
from penstock.checkpoint import identity
from penstock.checkpoint.checkpoint_folder import Local
from penstock.cli.pipeline_file import load
from penstock.codec.registry import Registry
from penstock.database.access import Access
from penstock.errors import PenstockError
from penstock.local import java
from penstock.local.services import Services, up
from penstock.wire import Producer
from penstock.wire.errors import ConnectionLost, KafkaError

FREQUENT = (Path(__file__).parents[1] / "docs/troubleshooting.md").read_text()
PAGE = messages.lines()
ROWS = re.findall(r"^\| (.+) \| .*\|$", PAGE, re.MULTILINE)


def said(error: Exception) -> str:
    if isinstance(error, KafkaError):
        return f"{error.name}: {error.says}"
    return error.what if isinstance(error, PenstockError) else str(error)


def on_the_page(text: str) -> list[str]:
    """The rows of the page whose template fits a message; those of a single word would fit any."""
    plain = " ".join(text.split())
    return [row for row in ROWS if len(re.findall(r"\w{2,}", messages.PLACE.sub("", row))) > 1 and _fits(row, plain)]


def _fits(row: str, plain: str) -> bool:
    template = re.sub(r"\\([|<*\[\]])", r"\1", row)
    return bool(messages.pattern(template).fullmatch(plain))


def test_each_area_has_messages() -> None:
    assert re.findall("^### (.+)$", PAGE, re.MULTILINE) == list(messages.AREAS)
    assert len(ROWS) > 700


def test_the_most_frequent_situations_quote_messages_of_the_list() -> None:
    table = FREQUENT.partition("## The ten most frequent")[2].partition("\n\nIf ")[0]
    rows = re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE)
    assert len(rows) == 10
    for quoted in (message for row in rows for message in re.findall("`([^`]+)`", row)):
        # Of the lines of a wait, the reason is such a message; Kafka's errors are known by their names.
        reason = quoted.rpartition("(...): ")[2].replace("...", "x")
        kafkas = f"| {reason.partition(':')[0]}: " in PAGE
        assert on_the_page(f"writing failed for 5 min: {reason}") if reason != quoted else on_the_page(reason) or kafkas


def test_a_message_that_is_not_ours_is_not_on_the_page() -> None:
    assert on_the_page("the moon was sold for cheese") == []


def no_java() -> None:
    java.find(accepted=(1,))


def missing_package() -> None:
    raise extras.missing(ModuleNotFoundError(name="rocksdict"), "penstock.table")


def broker_away() -> None:
    async def send() -> None:
        async with Producer("127.0.0.1:1", delivery_timeout=timedelta(seconds=1)) as producer:
            await producer.send("clicks", b"value")

    asyncio.run(send())


def other_query() -> None:
    raise identity._other(Local(Path("orders")), "reads", ["table shop.orders"], ["table shop.clients"])


RAISED: dict[str, Callable[[], object]] = {
    "no pipeline": lambda: load("shop.py"),
    "no file": lambda: load("nowhere.py:orders"),
    "no hosts": lambda: Access.of("", {}, where="cql.sink"),
    "wrong duration": lambda: segment.rule("back", when="true", ttl="soon", to="t"),
    "wrong codec": lambda: kafka.sink(topic="t", servers="127.0.0.1:9092", format="xml"),  # type: ignore[arg-type]
    "wrong delivery": lambda: kafka.sink(topic="t", servers="127.0.0.1:9092", delivery="perhaps"),  # type: ignore[arg-type]
    "wrong registry": lambda: Registry("registry"),
    "no sink": lambda: penstock.write(object.__new__(DataFrame)),
    "wrong type": lambda: Producer(["127.0.0.1:9092"]),  # type: ignore[arg-type]
    "wrong acks": lambda: Producer("127.0.0.1:9092", acks=7),  # type: ignore[arg-type]
    "wrong servers": lambda: Producer("nowhere"),
    "broker away": broker_away,
    "no java": no_java,
    "missing package": missing_package,
    "other query": other_query,
}


@pytest.mark.parametrize("raised", RAISED.values(), ids=RAISED)
def test_an_error_is_on_the_page(raised: Callable[[], object]) -> None:
    with pytest.raises((PenstockError, KafkaError, ValueError)) as error:
        raised()
    assert on_the_page(said(error.value)), said(error.value)


def test_a_taken_port_is_on_the_page(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PenstockError) as error:
        up(tmp_path, only=["kafka"], kafka_port=taken.getsockname()[1])
    assert on_the_page(error.value.what)
    assert "--kafka-port" in error.value.next


def test_a_missing_table_and_a_missing_log_are_on_the_page(
    spark: SparkSession, services: Services, cql: Session, keyspace: str
) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.plain (id int PRIMARY KEY)")
    for table, words in (("absent", "there is no table"), ("plain", "has no change log")):
        with pytest.raises(PenstockError, match=words) as error:
            cdc.read(spark, f"{keyspace}.{table}", hosts=services.cql, name="a")
        assert on_the_page(error.value.what)


def test_a_lost_connection_says_what_the_page_says() -> None:
    assert on_the_page(said(ConnectionLost("127.0.0.1:9092 closed the connection")))
