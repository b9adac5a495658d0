"""Events of a spool that Kafka does not take: they are written to a file or put apart, and the others continue."""

from __future__ import annotations

import asyncio
import json
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from fault_proxy import Request, fault_proxy, quick_producer
from kafka_topics import new_topic, stored
from refusals import refused

from penstock.ingest import spool, spool_carrier
from penstock.ingest.events import KeyedEvents
from penstock.ingest.exchange import RefusedRequest
from penstock.ingest.spool import Spool
from penstock.ingest.spool_files import SpoolFolder, SpoolWriter
from penstock.local.services import Services
from penstock.wire import Producer, Reader
from penstock.wire.errors import RequestTimeout, TopicAuthorizationFailed
from penstock.wire.protocol import frames


class Kafka:
    """Instead of a producer: takes all events, but none for `forbidden` topics, and those for `stuck` topics later."""

    def __init__(self) -> None:
        self.taken: dict[str, list[bytes]] = defaultdict(list)
        self.forbidden: set[str] = set()
        self.stuck: dict[str, asyncio.Event] = {}
        self.away = False
        self.tries: dict[str, int] = defaultdict(int)

    async def send_table(self, topic: str, table: pa.RecordBatch) -> None:
        self.tries[topic] += 1
        if topic in self.stuck:
            await self.stuck[topic].wait()
        if topic in self.forbidden:
            raise TopicAuthorizationFailed(topic=topic)
        self.taken[topic] += table["value"].to_pylist()

    async def ask(self) -> None:
        if self.away:
            raise RequestTimeout

    async def close(self) -> None: ...


@asynccontextmanager
async def opened(path: Path, kafka: Kafka, most: int = 1 << 20) -> AsyncIterator[Spool]:
    made = Spool(SpoolFolder(path), kafka, most, kafka.ask)  # type: ignore[arg-type]
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def put(spool: Spool, topic: str, *values: int) -> None:
    await spool.put(topic, KeyedEvents.of([b'{"n":%d}' % value for value in values], None, 0))


def numbers(*values: int) -> list[bytes]:
    return [b'{"n":%d}' % value for value in values]


async def reached(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - it happens in several places
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PAUSE": 0.01, "LONGEST_PAUSE": 0.05, "PATIENCE": 0.1, "ASK": 0.02}.items():
        monkeypatch.setattr(spool_carrier, name, value)
    monkeypatch.setattr(spool, "DRAIN", 0.2)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(within())


def test_a_topic_without_the_right_to_write_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kafka = Kafka()

    async def work() -> None:
        async with opened(tmp_path, kafka) as made:
            kafka.forbidden = {"a"}
            for n in range(20):
                await put(made, "a", 2 * n, 2 * n + 1)
                await put(made, "b", n)
            await reached(lambda: len(kafka.taken["b"]) == 20)
            await reached(lambda: made._own._replay.is_empty())
            facts = made.facts()
            assert (facts.takes, facts.kafka, set(facts.waiting)) == (True, "ok", {"a"})
            assert "events for a wait: TOPIC_AUTHORIZATION_FAILED" in facts.problem
            assert facts.waiting["a"] > 0
            assert kafka.taken["a"] == []
            kafka.forbidden = set()
            await reached(lambda: made._own.is_drained())
            await put(made, "a", 40)
            await reached(lambda: len(kafka.taken["a"]) == 41)
            assert made.facts().problem == ""

    run(work)
    assert kafka.taken == {"a": numbers(*range(41)), "b": numbers(*range(20))}
    assert not (tmp_path / "topic-a").exists()
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "for a wait in" in line and "TOPIC_AUTHORIZATION_FAILED" in line]
    assert "Kafka has all events for a that waited" in said
    assert len(said) < 5, "not a line for each try"


def test_a_topic_that_kafka_does_not_answer_for_holds_up_no_other(tmp_path: Path) -> None:
    kafka = Kafka()
    kafka.stuck["a"] = asyncio.Event()

    async def work() -> None:
        async with opened(tmp_path, kafka) as made:
            for n in range(5):
                await put(made, "a", n)
                await put(made, "b", n)
            await reached(lambda: len(kafka.taken["b"]) == 5)
            assert kafka.tries["a"] == 1, "what is under way is not sent again"
            kafka.stuck["a"].set()
            await reached(lambda: made._own.is_drained())

    run(work)
    assert kafka.taken == {"a": numbers(*range(5)), "b": numbers(*range(5))}


def test_while_kafka_is_away_nothing_is_put_apart(tmp_path: Path) -> None:
    kafka = Kafka()
    kafka.stuck = {"a": asyncio.Event(), "b": asyncio.Event()}
    kafka.away = True

    async def work() -> None:
        async with opened(tmp_path, kafka) as made:
            await put(made, "a", 1)
            await put(made, "b", 1)
            await asyncio.sleep(5 * spool_carrier.PATIENCE)
            assert not made._own.apart
            kafka.away = False
            for one in kafka.stuck.values():
                one.set()
            await reached(lambda: made._own.is_drained())

    run(work)
    assert kafka.taken == {"a": numbers(1), "b": numbers(1)}


def test_what_waits_is_there_after_a_start_and_keeps_its_order(tmp_path: Path) -> None:
    before, after = Kafka(), Kafka()
    before.forbidden = after.forbidden = {"a"}

    async def first() -> None:
        async with opened(tmp_path, before) as made:
            for n in range(3):
                await put(made, "a", n)
            await reached(lambda: made._own._replay.is_empty())

    async def second() -> None:
        async with opened(tmp_path, after) as made:
            await put(made, "a", 3)
            await put(made, "b", 1)
            await reached(lambda: after.taken["b"])
            after.forbidden = set()
            await reached(lambda: made._own.is_drained())

    run(first)
    assert SpoolFolder(tmp_path).topics() == ["a"]
    run(second)
    assert (before.taken["a"], after.taken["a"]) == ([], numbers(0, 1, 2, 3))


def test_an_end_at_any_time_loses_nothing_and_keeps_each_topics_order(tmp_path: Path) -> None:
    """The right to write is granted and revoked while events come, with restarts in between."""
    random, kafka, sent = Random(14), Kafka(), dict.fromkeys(("a", "b", "c"), 0)

    async def some() -> None:
        async with opened(tmp_path, kafka) as made:
            for _ in range(random.randrange(1, 30)):
                topic = random.choice(list(sent))
                await put(made, topic, sent[topic])
                sent[topic] += 1
                if random.random() < 0.2:
                    kafka.forbidden = set(random.sample(list(sent), random.randrange(4)))
                if random.random() < 0.2:
                    await asyncio.sleep(random.random() / 50)

    async def rest() -> None:
        kafka.forbidden = set()
        async with opened(tmp_path, kafka) as made:
            await reached(lambda: made._own.is_drained())

    for _ in range(30):
        run(some)
    run(rest)
    for topic, count in sent.items():  # some may come twice, as after kill -9
        assert list(dict.fromkeys(kafka.taken[topic])) == numbers(*range(count))
    assert not SpoolFolder(tmp_path).topics()


def test_events_that_wait_leave_half_of_the_room_to_the_other_topics(tmp_path: Path) -> None:
    kafka = Kafka()
    kafka.forbidden = {"a"}

    async def work() -> None:
        async with opened(tmp_path, kafka, most=20_000) as made:
            with pytest.raises(RefusedRequest, match="no room for more; nothing was stored: TOPIC_AUTHOR") as refused:
                for n in range(1000):
                    await put(made, "a", *range(10 * n, 10 * n + 10))
                    await reached(lambda: made._own._replay.is_empty())
            assert refused.value.status == 503
            assert 8_000 < made.size() <= 20_000
            for n in range(500):
                await put(made, "b", n)
                if n % 50 == 0:
                    await reached(lambda: made._own._replay.is_empty())

    run(work)
    assert kafka.taken == {"b": numbers(*range(500))}


def test_a_full_disk_delays_what_is_put_apart_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = Kafka()
    kafka.forbidden = {"a"}
    real, failures = SpoolWriter.append, [OSError(28, "No space left on device")] * 3

    def full(writer: SpoolWriter, data: bytes) -> None:
        if writer._folder.path.name == "topic-a" and failures:
            raise failures.pop()
        real(writer, data)

    monkeypatch.setattr(SpoolWriter, "append", full)

    async def work() -> None:
        async with opened(tmp_path, kafka) as made:
            for n in range(4):
                await put(made, "a", n)
                await put(made, "b", n)
            await reached(lambda: len(kafka.taken["b"]) == 4)
            kafka.forbidden = set()
            await reached(lambda: made._own.is_drained())

    run(work)
    assert not failures
    assert kafka.taken == {"a": numbers(*range(4)), "b": numbers(*range(4))}


def test_a_topic_that_ends_its_wait_while_another_one_stops_is_not_stopped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is closed twice may be another one's by then."""
    kafka = Kafka()
    kafka.forbidden = {"a", "b"}

    async def work() -> None:
        async with opened(tmp_path, kafka) as made:
            await put(made, "a", 1)
            await reached(lambda: "a" in made._own.apart)
            await put(made, "b", 1)
            await reached(lambda: "b" in made._own.apart)
            first = made._own.apart["a"]
            stop = first.stop

            async def slowly() -> None:
                kafka.forbidden = {"a"}
                await reached(lambda: "b" not in made._own.apart)
                await stop()

            monkeypatch.setattr(first, "stop", slowly)

    run(work)
    assert kafka.taken == {"b": numbers(1)}
    assert SpoolFolder(tmp_path).topics() == ["a"]


def test_a_topic_that_a_broker_refuses_holds_up_no_other_and_gets_its_events_afterwards(
    services: Services, tmp_path: Path
) -> None:
    forbidden: set[tuple[str, str]] = set()

    def topics(request: Request) -> set[tuple[str, str]]:
        return {(one["name"], str(one["topic_id"])) for one in request.body["topic_data"]}

    async def work(good: str, bad: str) -> None:
        refuses_all = True

        def ask(request: Request) -> Request | bytes:
            if request.api is not frames.PRODUCE:
                return request
            if refuses_all:
                forbidden.update(topics(request))
            return refused(request, TopicAuthorizationFailed) if topics(request) & forbidden else request

        async with Reader(services.kafka) as reader, fault_proxy(services.kafka) as proxy:
            proxy.ask = ask
            made = Spool(SpoolFolder(tmp_path), quick_producer(proxy), 1 << 20, reader.topics)
            await made.open()
            await put(made, bad, 1, 2)
            await reached(lambda: set(made.facts().waiting) == {bad})
            refuses_all = False
            await put(made, bad, 3)
            await put(made, good, 1, 2)
            await reached(lambda: made._own._replay.is_empty())
            # A request that has events of both was refused as a whole.
            await reached(lambda: set(made.facts().waiting) == {bad})
            assert stored(services.kafka, good, 1) == [numbers(1, 2)]
            forbidden.clear()
            await reached(lambda: made._own.is_drained())
            await made.close()

    with new_topic(services.kafka, "good", 1) as good, new_topic(services.kafka, "bad", 1) as bad:
        asyncio.run(work(good, bad))
        assert stored(services.kafka, bad, 1) == [numbers(1, 2, 3)]


def test_events_that_a_topic_never_takes_are_each_a_line_of_the_file(services: Services, tmp_path: Path) -> None:
    bad = [{"user": "u-1", "note": "a\nb"}, {"user": "u-2", "more": [1, {}]}]
    good = [b'{"n":1}', b'{"n":2}']

    async def work(topic: str) -> None:
        async with Reader(services.kafka) as reader:
            spool = Spool(SpoolFolder(tmp_path), Producer(services.kafka), 1 << 20, reader.topics)
            await spool.open()
            pretty = [json.dumps(one, indent=2).replace("\n", "\r\n").encode() for one in bad]
            sent = [
                KeyedEvents.of(good[:1], b"k", 0),
                KeyedEvents.of(pretty, None, 0),
                KeyedEvents.of(good[1:], b"k", 0),
            ]
            await asyncio.gather(*[spool.put(topic, events) for events in sent])
            await asyncio.wait_for(spool._own.drained(), 60)
            await spool.close()

    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as topic:
        asyncio.run(work(topic))
        assert stored(services.kafka, topic, 1) == [good]
    lines = [json.loads(line) for line in (tmp_path / "refused.ndjson").read_text().splitlines()]
    assert [line["event"] for line in lines] == bad
    assert all("INVALID_RECORD" in line["reason"] and line["topic"] == topic for line in lines)
    assert stat.S_IMODE((tmp_path / "refused.ndjson").stat().st_mode) == 0o600
