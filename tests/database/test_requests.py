"""Sending many requests at once: limits, order, faults and owners, on a cluster that answers as the test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import (
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from cassandra.connection import ConnectionShutdown
from cassandra.query import BatchStatement, BoundStatement, PreparedStatement
from hypothesis import HealthCheck, given, settings, strategies as st
from ring_cluster import Cluster

from penstock.database import Page, requests as module, retrying as waits, token_ring
from penstock.database.access import Access
from penstock.database.requests import (
    BYTES_TOGETHER,
    WRITES_TOGETHER,
    CqlRequest,
    Expiry,
    RequestLimits,
    Statement,
    send_all,
    size_of,
    together,
)
from penstock.database.retrying import DatabaseUnavailable
from penstock.errors import PenstockError, SchemaChanged

ACCESS = Access("db")
LIMITS = RequestLimits(in_flight=3, timeout=timedelta(seconds=7), patience=timedelta(seconds=5))


class Nodes(Cluster):
    """A cluster that answers each request with its first value, and fails where `faults` has errors for this value."""

    def __init__(self) -> None:
        super().__init__()
        self.pages.execute_async = self.execute_async
        self.pages.prepare = self.prepare
        self.faults: dict[bytes, list[Exception]] = {}
        self.sent: list[tuple[bytes, str | None]] = []
        self.in_flight = self.most_in_flight = 0
        self.timeouts: set[float] = set()
        self.statements: list[Any] = []
        self.refused: set[str] = set()
        self.unsendable: list[bytes] = []

    def prepare(self, text: str) -> Any:
        if text in self.refused:
            raise InvalidRequest(f"{text} has an unknown column")
        return PreparedStatement([], text.encode(), None, text, "ks", 4, None, None)

    def execute_async(self, statement: Any, timeout: float, host: Any) -> Any:
        self.statements.append(statement)
        self.timeouts.add(timeout)
        batch = isinstance(statement, BatchStatement)
        values = statement._statements_and_parameters[0][2] if batch else statement.values
        if values[0] in self.unsendable:
            self.unsendable.remove(values[0])
            raise OperationTimedOut("no connection is free")
        self.sent.append((values[0], host and host.address))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

        def result() -> Any:
            self.in_flight -= 1
            if faults := self.faults.get(values[0]):
                raise faults.pop(0)
            return SimpleNamespace(current_rows=[] if batch else [Page(values[0], 1, True)])

        return SimpleNamespace(result=result)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes()
    made.connect(monkeypatch, module, token_ring)
    monkeypatch.setattr(waits, "pause", lambda seconds: None)
    return made


def reads(*keys: bytes) -> list[CqlRequest]:
    return [CqlRequest((("SELECT v FROM t WHERE k = ?", [key]),), key) for key in keys]


def send(requests: Sequence[CqlRequest], **more: Any) -> list[bytes]:
    return [page.data for page in send_all(ACCESS, "ks", requests, LIMITS, what="reading", where="ks.t", **more)]


KEYS = [b"key %02d" % number for number in range(20)]


def test_answers_are_in_the_order_of_the_requests_and_few_run_at_once(nodes: Nodes) -> None:
    assert send(reads(*KEYS)) == KEYS
    assert nodes.most_in_flight == 3 and nodes.in_flight == 0 and nodes.timeouts == {7.0}


def test_each_request_goes_to_the_owner_of_its_partition(nodes: Nodes) -> None:
    send(reads(*KEYS))
    assert nodes.sent == list(zip(KEYS, nodes.owners(*KEYS), strict=True))
    assert len({host for _, host in nodes.sent}) > 1


def test_nothing_to_send_asks_no_node(nodes: Nodes) -> None:
    assert send([]) == [] and not nodes.sent


def test_only_unanswered_requests_are_repeated_and_then_at_any_node(nodes: Nodes) -> None:
    nodes.faults = {KEYS[4]: [ReadTimeout("slow")], KEYS[5]: [OperationTimedOut(), OperationTimedOut()]}
    repeated: list[int] = []
    assert send(reads(*KEYS), repeated=repeated.append) == KEYS and send(reads(KEYS[0]), repeated=repeated.append)
    assert repeated == [3]
    nodes.sent.pop()
    asked = Counter(key for key, _ in nodes.sent)
    # Requests that were sent before the first fault was seen; the others wait for the next attempt.
    assert [key for key, _ in nodes.sent[:7]] == KEYS[:7]
    assert asked == Counter(KEYS) + Counter({KEYS[4]: 1, KEYS[5]: 2})
    assert {host for _, host in nodes.sent[7:]} == {None} and nodes.in_flight == 0


@pytest.mark.parametrize(
    "fault",
    [
        OperationTimedOut(),
        WriteTimeout("slow", write_type=0),
        ConnectionShutdown("cut"),
        WriteFailure("half", consistency=1, write_type=0),
    ],
)
def test_what_must_not_be_executed_twice_is_not_sent_again_if_it_may_have_been(nodes: Nodes, fault: Exception) -> None:
    nodes.faults = {KEYS[0]: [fault], KEYS[1]: [Unavailable("no node")], KEYS[2]: [OperationTimedOut()]}
    requests = [replace(one, once=number < 2) for number, one in enumerate(reads(*KEYS[:4]))]
    sending = module.Sending(ACCESS, "ks", LIMITS, what="writing", where="ks.t")
    sending.add(requests)
    assert [page.data for page in sending.finish()] == KEYS[1:4]
    assert sending.uncertain() == {0: fault} and sending.unanswered() == []
    assert Counter(key for key, _ in nodes.sent) == Counter([KEYS[0], *KEYS[1:3] * 2, KEYS[3]])


def test_requests_are_sent_while_more_of_them_are_made_and_faults_wait_for_the_end(nodes: Nodes) -> None:
    nodes.faults = {KEYS[1]: [OperationTimedOut()]}
    sending = module.Sending(ACCESS, "ks", LIMITS, what="reading", where="ks.t")
    sending.add(reads(*KEYS[:3]))
    assert [key for key, _ in nodes.sent] == KEYS[:3] and nodes.in_flight == 3
    sending.add(reads(*KEYS[3:9]))
    assert [key for key, _ in nodes.sent] == KEYS[:4] and sending.unanswered() == [*range(1, 9)]
    assert [page.data for page in sending.finish()] == KEYS[:9] and nodes.in_flight == 0


def test_a_request_that_cannot_be_sent_does_not_repeat_those_that_wait_for_an_answer(nodes: Nodes) -> None:
    nodes.faults, nodes.unsendable = {KEYS[0]: [OperationTimedOut()]}, [KEYS[4]]
    assert send(reads(*KEYS)) == KEYS
    assert Counter(key for key, _ in nodes.sent) == Counter(KEYS) + Counter(KEYS[:1]) and not nodes.unsendable


def test_a_fault_that_stays_ends_with_what_failed_and_where(nodes: Nodes) -> None:
    nodes.faults = {KEYS[0]: [OperationTimedOut()] * 10_000}
    limits = RequestLimits(patience=timedelta(0))
    with pytest.raises(DatabaseUnavailable, match=r"reading failed for 0 s: OperationTimedOut.*\(ks.t at db\)"):
        send_all(ACCESS, "ks", reads(*KEYS), limits, what="reading", where="ks.t")


def test_a_missing_permission_is_not_repeated(nodes: Nodes) -> None:
    nodes.faults = {KEYS[0]: [Unauthorized("no SELECT")]}
    with pytest.raises(PenstockError, match="no permission: no SELECT"):
        send(reads(KEYS[0]))
    assert len(nodes.sent) == 1


def test_a_refused_value_and_a_changed_table_are_told_apart_by_preparing_again(nodes: Nodes) -> None:
    agreed = []
    nodes.cluster.control_connection = SimpleNamespace(wait_for_schema_agreement=lambda: agreed.append(1))
    nodes.faults = {KEYS[0]: [InvalidRequest("bad value")] * 2}
    with pytest.raises(PenstockError, match=r"reading failed, the database refuses a value: .*bad value") as raised:
        send(reads(KEYS[0]))
    assert not raised.value.retriable
    nodes.refused = {"SELECT v FROM t WHERE k = ?"}
    with pytest.raises(SchemaChanged, match="reading failed, the table has changed since the query was built"):
        send(reads(KEYS[0]))
    # Otherwise a node that does not know of the change yet would be asked.
    assert agreed == [1, 1]


def test_one_statement_is_sent_alone_and_several_as_an_unlogged_batch(nodes: Nodes) -> None:
    one, two = ("INSERT INTO t (k) VALUES (?)", [b"a"]), ("DELETE FROM t WHERE k = ? AND c = ?", [b"b", None])
    assert send([CqlRequest((one,), b"a"), CqlRequest((one, two), b"a")]) == [b"a", b""]
    single, batch = nodes.statements
    assert isinstance(single, BoundStatement) and single.values == [b"a"]
    assert batch.batch_type.name == "UNLOGGED"
    assert batch._statements_and_parameters == [(True, one[0].encode(), [b"a"]), (True, two[0].encode(), [b"b", None])]


def test_a_time_to_live_counts_from_when_a_statement_is_sent(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is sent again may be minutes old; what ran out by then still expires, at once."""
    clock = [1_000]
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock[0] + 0.9))
    monkeypatch.setattr(waits, "pause", lambda seconds: clock.append(clock.pop() + 70))
    nodes.faults = {b"a": [OperationTimedOut()] * 2}
    one: Statement = "UPDATE t USING TTL ? SET v = ?", [b"a", Expiry(1_100), None]
    (alone,) = send_all(ACCESS, "ks", [CqlRequest((one,), b"a")], LIMITS, what="w", where="t")
    lefts = [int.from_bytes(statement.values[1], "big") for statement in nodes.statements]
    assert lefts == [100, 30, 1] and alone.asked == 1_140
    nodes.statements.clear()
    send_all(ACCESS, "ks", [CqlRequest((one, one), b"a")], LIMITS, what="w", where="t")
    ((_, _, values), _) = nodes.statements[0]._statements_and_parameters
    assert values == [b"a", (1).to_bytes(4, "big"), None]


ROWS = st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.integers(0, 3000)), max_size=60)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_writes_are_grouped_by_owner_in_small_requests_and_none_is_lost(
    nodes: Nodes, rows: list[tuple[bytes, int]]
) -> None:
    writes = [(key, [(f"INSERT {number}", [key, bytes(size), None])]) for number, (key, size) in enumerate(rows)]
    made = together(ACCESS, "ks", iter(writes), LIMITS)
    statements = [statement for request in made for statement in request.statements]
    assert Counter(text for text, _ in statements) == Counter(text for _, ((text, _),) in writes)
    order = {text: (number, key) for number, (key, ((text, _),)) in enumerate(writes)}
    for request in made:
        keys = [order[text][1] for text, _ in request.statements]
        assert request.key == keys[0] and len(set(nodes.owners(*keys))) == 1
        assert [order[text][0] for text, _ in request.statements] == sorted(
            order[text][0] for text, _ in request.statements
        )
        sizes = [size_of([statement]) for statement in request.statements]
        assert len(sizes) == 1 or (len(sizes) <= WRITES_TOGETHER and sum(sizes) <= BYTES_TOGETHER)


def test_writes_for_any_node_are_grouped_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(nodes=1).connect(monkeypatch, token_ring)
    made = together(ACCESS, "ks", [(b"%d" % n, [("INSERT", [b"%d" % n])]) for n in range(23)], LIMITS)
    assert [len(request.statements) for request in made] == [10, 10, 3]
    assert [request.key for request in made] == [b"0", b"10", b"20"]
    assert together(ACCESS, "ks", [], LIMITS) == []


def test_statements_that_belong_together_stay_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(nodes=1).connect(monkeypatch, token_ring)
    writes = [(b"%d" % n, [("INSERT", [b"%d" % n])] * count) for n, count in enumerate((8, 3, 25, 1))]
    made = together(ACCESS, "ks", writes, LIMITS)
    assert [len(request.statements) for request in made] == [8, 3, 25, 1]
