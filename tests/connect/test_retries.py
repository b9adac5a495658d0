"""`errors.retry.timeout` of sinks: what is tried again, how often, and what becomes of a record then."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from file_sinks import file_sink

from penstock.codec.registry import RegistryUnavailable
from penstock.connect.definition import INERT
from penstock.connect.records.deserializers import RawRecord, TextBytes
from penstock.connect.records.record import NOTHING, NoValue, Part, PassingFault
from penstock.connect.sinks import retries
from penstock.connect.sinks.destination import Bad
from penstock.connect.sinks.record_sink import SinkTask
from penstock.connect.sinks.replication import properties as replication_properties
from penstock.connect.sinks.retries import Patient, Retries
from penstock.connect.sinks.task import decoded
from penstock.connect.worker.checks import check
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError

AWAY = RegistryUnavailable("the registry does not answer", where="http://r:1", next="start it")


class Faulty:
    """A converter that raises these errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, data: Any) -> Part:
        if self.errors:
            raise self.errors.pop(0)
        return Part(None, data)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a machine whose clock moves by them alone."""
    found: list[float] = []
    monkeypatch.setattr(retries, "pause", found.append)
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: sum(found)))
    return found


@pytest.mark.parametrize(
    ("timeout", "longest", "faults", "wanted"),
    [
        (60, 60, 3, [0.3, 0.6, 1.2]),
        (60, 1, 4, [0.3, 0.6, 1, 1]),
        (math.inf, 10, 6, [0.3, 0.6, 1.2, 2.4, 4.8, 9.6]),
        (1, 60, 2, [0.3, 0.6]),
    ],
)
def test_a_fault_that_can_pass_is_tried_again(
    pauses: list[float], timeout: float, longest: float, faults: int, wanted: Sequence[float]
) -> None:
    for error in (AWAY, PassingFault("busy")):
        pauses.clear()
        assert Patient(Faulty(*[error] * faults), Retries(timeout, longest))(b"x") == Part(None, b"x")
        assert pauses == pytest.approx(wanted)


def test_when_the_time_is_over_the_record_is_a_bad_one(pauses: list[float]) -> None:
    patient = Patient(Faulty(*[AWAY] * 10), Retries(1, 60))
    (bad,) = decoded([RawRecord("t", 0, 7, None, b"k", b"v", ())], TextBytes(), patient)
    assert isinstance(bad, Bad) and bad.stage == "VALUE_CONVERTER" and bad.record.place == ("t", 0, 7)
    assert "the registry does not answer" in bad.reason and bad.reason.endswith("; it was tried again for 1 s")
    assert pauses == pytest.approx([0.3, 0.6, 0.1])


@pytest.mark.parametrize("error", [NoValue("it is not JSON"), PenstockError("wrong password")])
def test_other_faults_are_not_tried_again(pauses: list[float], error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        Patient(Faulty(error), Retries(60, 60))(b"")
    assert pauses == []


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, None),
        ({"errors.retry.timeout": "0", "errors.retry.delay.max.ms": "5"}, None),
        ({"errors.retry.timeout": "1500"}, Retries(1.5, 60)),
        ({"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "500"}, Retries(math.inf, 0.5)),
    ],
)
def test_the_writer_of_a_task_has_what_the_configuration_says(more: dict[str, str], wanted: Retries | None) -> None:
    found = check(file_sink() | more, Provided(), ask=False)
    assert not found.messages
    writer = pickle.loads(pickle.dumps(SinkTask("x", 0, ("t",), "h:1", found.values, found.config)._writer()))
    assert writer.transforms.retries == wanted
    for side in (writer.key, writer.value, writer.header):
        assert (side.retries if isinstance(side, Patient) else None) == wanted
    assert writer.key(None) == TextBytes()(None) and writer.header(None) == NOTHING


def test_a_wrong_time_is_refused_and_a_replication_says_that_it_has_none() -> None:
    for name in ("errors.retry.timeout", "errors.retry.delay.max.ms"):
        assert set(check(file_sink() | {name: "-2"}, Provided(), ask=False).errors) == {name}
        (of_replication,) = (one for one in replication_properties.properties() if one.name == name)
        assert of_replication.doc.startswith(INERT)
