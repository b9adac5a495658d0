"""What the console makes of odd answers and odd files: an answer of its own, never a failure."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from console_process import http_server, status
from starlette.testclient import TestClient

from penstock.console import app as console_app
from penstock.console.calls import PageGone, while_connected
from penstock.console.error_answers import SafeJSONResponse
from penstock.console.reading import topic_list
from penstock.console.reading.dead_letter_topics import MOST_KEPT, Letter, _Newest
from penstock.console.reading.masking import Mask
from penstock.console.reading.stopped_pipelines import StoppedPipelines
from penstock.console.reading.topic_list import TopicList
from penstock.console.reading.topic_messages import PartitionRecords
from penstock.console.settings import ConsoleSettings
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.serve.access.hosts import Hosts, guarded
from penstock.serve.http_client import Address

STATES = Path(__file__).parents[1] / "data/earlier_build.tar.gz"
HALF = "\ud800"
"""Half of a character: valid in JSON as an escape, and not in UTF-8."""


@pytest.fixture(autouse=True)
def no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "runs"))


@contextmanager
def client(**settings: Any) -> Iterator[TestClient]:
    app = guarded(console_app.app(WatchedSystems(ConsoleSettings(**settings))), Hosts(), allow_with="--allow-host NAME")
    with TestClient(app, base_url="http://127.0.0.1:8085", raise_server_exceptions=False) as made:
        yield made


def test_half_of_a_character_and_numbers_that_are_not_finite_are_shown() -> None:
    connector = {"status": {"name": HALF, "connector": {"state": "RUNNING"}}}
    own = "GET /connectors/c"
    pages = {f"{own}/status": connector["status"], f"{own}/config": {}, f"{own}/offsets": b'{"offsets": [NaN, -1e999]}'}
    with ExitStack() as stack:
        target = stack.enter_context(http_server({"GET /status": status(HALF)})).url
        cluster = stack.enter_context(http_server({"GET /connectors": {HALF: connector}, **pages})).url
        state = stack.enter_context(http_server({"GET /state/s": b'{"rows": [{"a": NaN}, "\\ud800"]}'})).url
        targets, connect = (Address(target, None),), (Address(cluster, None),)
        made = stack.enter_context(client(targets=targets, connect=connect, state=Address(state, None)))
        answers = {path: made.get(f"/api/{path}") for path in ("overview", "connectors", "connectors/0/c", "state/s")}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert answers["overview"].json()["runs"][0]["name"] == HALF
    assert answers["connectors/0/c"].json()["offsets"] == ["nan", "-inf"]
    assert answers["state/s"].json()["rows"] == [{"a": "nan"}, HALF]
    assert all(answer.headers["cache-control"] == "no-store" for answer in answers.values())


@pytest.mark.parametrize("mask", [(), ("email",)])
def test_rows_that_are_nested_deep_are_an_answer(mask: tuple[str, ...]) -> None:
    rows = b'{"rows": ' + b"[" * 970 + b"]" * 970 + b"}"
    with http_server({"GET /state/s": rows}) as state, client(state=Address(state.url, None), mask=mask) as made:
        answer = made.get("/api/state/s")
        assert answer.status_code in (200, 502, 503) and "the console failed" not in answer.text


@pytest.mark.parametrize("name", ["%2e%2e/metrics", "a/%2e%2e/%2e%2e/admin", "%2e/x", "%2e%2e"])
def test_a_name_of_a_state_is_not_a_path_to_another_page(name: str) -> None:
    with http_server({}) as state, client(state=Address(state.url, None)) as made:
        assert "is not a name of a state" in made.get(f"/api/state/{name}").json()["error"]
        assert state.asked.empty()


def test_the_state_of_another_server_is_found_while_one_is_away(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with tarfile.open(STATES) as archive:
        archive.extractall(checkpoints, filter="data")
    with client(state=Address("http://127.0.0.1:1", None)) as made:
        assert made.get("/api/state/none").status_code == 503
    with client(state=Address("http://127.0.0.1:1", None), checkpoints=checkpoints) as made:
        assert "names" in made.get("/api/state/none").json()["error"] or made.get("/api/state/none").status_code == 404


@pytest.mark.parametrize("path", ["/api/connectors/" + "9" * 5000 + "/c", "/api/pipelines/" + "x" * 5000])
def test_addresses_have_a_largest_length(path: str) -> None:
    with client() as made:
        assert made.get(path).status_code == 414


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_a_connector_is_not_a_path_to_another_page(name: str) -> None:
    data = WatchedSystems(ConsoleSettings(connect=(Address("http://127.0.0.1:1", None),)))
    with pytest.raises(PenstockError, match="is not a name of a connector"):
        asyncio.run(data.clusters.connector(0, name))
    with pytest.raises(PenstockError, match="is not a name of a connector"):
        asyncio.run(data.clusters.act(0, name, "pause"))


@pytest.mark.parametrize("url", ["http://a..b", "http://h/a b", "http://h/ä", "http://ä.example", f"http://{'a' * 64}"])
def test_addresses_that_no_request_can_have_are_refused_at_the_start(url: str) -> None:
    with pytest.raises(PenstockError, match="is not the address of a server"):
        Address.of(url, "--target")


DAMAGED = [
    b"",
    b"\xff",
    b"[" * 5000,
    b'v1\n{"batchTimestampMs":"x"}\n-',
    b'v1\n{"batchTimestampMs":9999999999999999}\n-',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_checkpoints_are_problems_and_hide_no_others(tmp_path: Path, content: bytes) -> None:
    with tarfile.open(STATES) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "root"
    for name in ("whole", "damaged"):
        shutil.copytree(tmp_path / "tables/checkpoint", root / name)
    for path in (root / "damaged/metadata", *(root / "damaged/offsets").iterdir()):
        path.write_bytes(content)

    async def ends(topic: str) -> tuple[dict[int, int], dict[int, int]]:
        return {0: 0}, {0: 10}

    stopped = StoppedPipelines(ends)
    asyncio.run(stopped.refresh([root]))
    found = {one["name"]: one for one in stopped.pipelines}
    assert set(found) == {"whole", "damaged"} and not found["whole"]["errors"]
    assert found["damaged"]["errors"]


def test_checkpoints_that_cannot_be_read_are_the_first_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(roots: object) -> None:
        raise ValueError("this is broken")

    monkeypatch.setattr("penstock.console.reading.stopped_pipelines._shown", broken)
    with client(checkpoints=tmp_path) as made:
        (problem,) = made.get("/api/overview").json()["problems"]
    assert (problem["severity"], problem["where"]) == ("failed", str(tmp_path))
    assert "the checkpoints cannot be read: ValueError: this is broken" in problem["what"] and problem["next"]


# Dead letters.


def letter(at: int, value: bytes = b"", **headers: bytes) -> Letter:
    named = tuple((f"__connect.errors.{name.replace('_', '.')}", value) for name, value in headers.items())
    return Letter(0, at, at, None, value, named)


@pytest.mark.parametrize("digits", [b"9" * 5000, b"9" * 4000, b"-1", b"1.5", "٣".encode()])
def test_a_made_up_offset_is_none(digits: bytes) -> None:
    assert letter(1, offset=digits, partition=b"7").origin == {
        "topic": None,
        "table": None,
        "partition": 7,
        "offset": None,
    }


def test_a_reason_is_hidden_where_it_is_shown() -> None:
    one = letter(1, exception_message=b"email ann@example.com is known")
    assert one.reason(Mask(["email"])) == "[hidden]"
    assert one.reason(Mask([])) == "email ann@example.com is known"


def test_of_the_newest_letters_only_some_bytes_are_kept() -> None:
    newest = _Newest(500)
    for offset in range(200):
        newest.add(letter(offset, b"x" * (1 << 20)))
    kept = newest.letters()
    assert newest.count == 200
    assert [one.offset for one in kept] == list(range(200 - len(kept), 200))
    assert len(kept) == MOST_KEPT >> 20
    small = _Newest(3)
    for offset in (5, 1, 4, 2, 3):
        small.add(letter(offset))
    assert [one.offset for one in small.letters()] == [3, 4, 5]


# Records.


def row(offset: int, size: int = 1) -> Any:
    return {"offset": offset, "key": None, "value": "x" * size, "headers": []}


@pytest.mark.parametrize(("newest", "expected"), [(False, [0, 1, 2]), (True, [7, 8, 9])])
@pytest.mark.parametrize(("most", "characters", "size"), [(3, 1000, 1), (100, 30, 10), (3, 30, 10)])
def test_of_a_window_a_bounded_part_is_kept(
    newest: bool, expected: list[int], most: int, characters: int, size: int
) -> None:
    kept = PartitionRecords(most, characters, newest)
    for offset in range(10):
        kept.add(row(offset, size))
    assert [one["offset"] for one in kept.records] == expected and kept.dropped
    whole = PartitionRecords(100, 1000, newest)
    whole.add(row(0, 5000))
    assert len(whole.records) == 1 and not whole.dropped


# Requests and connections.


def test_the_work_for_a_page_that_has_gone_is_cancelled() -> None:
    async def calls() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        class Page:
            async def receive(self) -> dict[str, str]:
                await began.wait()
                return {"type": "http.disconnect"}

        async with asyncio.timeout(30):
            with pytest.raises(PageGone):
                await while_connected(Page(), work())  # type: ignore[arg-type]
            await cancelled.wait()

    asyncio.run(calls())


def test_callers_at_the_start_share_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        closed = False

        async def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(topic_list, "_reader", lambda kafka: Reader())

    async def calls() -> list[Any]:
        topics = TopicList(Brokers("127.0.0.1:1"))
        return await asyncio.gather(*(topics._opened() for _ in range(5)))

    readers = asyncio.run(calls())
    assert len(set(map(id, readers))) == 1 and not readers[0].closed


def test_a_kafka_that_goes_away_is_not_a_kafka_without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.wire.errors import RequestTimeout, UnknownTopicOrPartition

    async def ends(name: str) -> dict[int, int]:
        raise UnknownTopicOrPartition if name == "gone" else RequestTimeout

    async def some(name: str) -> dict[int, int]:
        if name == "gone":
            raise UnknownTopicOrPartition
        return {0: 1}

    assert asyncio.run(topic_list._all(["gone", "a"], some)) == {"a": {0: 1}}
    with pytest.raises(RequestTimeout):
        asyncio.run(topic_list._all(["gone", "a"], ends))


def test_json_of_the_console_is_utf8_where_it_can_be() -> None:
    assert SafeJSONResponse({"a": "ä"}).body == '{"a":"ä"}'.encode()
    assert json.loads(bytes(SafeJSONResponse({"a": [float("nan"), "ä\ud800"]}).body)) == {"a": ["nan", "ä\ud800"]}
