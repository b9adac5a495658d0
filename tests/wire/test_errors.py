"""The errors of the client: their classes and messages, and that they survive a trip to another process."""

from __future__ import annotations

import pickle

from penstock.wire import errors
from penstock.wire.errors import (
    CODES,
    ConnectionLost,
    KafkaError,
    NotABroker,
    NotLeaderOrFollower,
    ProducerFenced,
    RequestTimeout,
    UnknownServerError,
    Unreachable,
    UnsupportedBroker,
    error_of,
)

CLIENT_SIDE = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, KafkaError) and kind not in (KafkaError, *CODES.values())
]


def test_a_message_says_what_where_and_why() -> None:
    error = NotLeaderOrFollower("asked broker 2", topic="orders", partition=3)
    assert str(error) == (
        "NOT_LEADER_OR_FOLLOWER (topic orders, partition 3): "
        "the partition's leader has moved to another broker: asked broker 2"
    )
    assert str(ProducerFenced()).startswith("PRODUCER_FENCED: a newer producer")


def test_an_error_without_a_name_has_no_empty_parts() -> None:
    assert str(KafkaError("the sender failed")) == "the sender failed"
    assert str(KafkaError("why", topic="t")) == "(topic t): why"
    assert str(KafkaError()) == ""


def test_each_error_has_a_name_and_a_sentence_and_can_be_pickled() -> None:
    kinds = [*CODES.values(), *CLIENT_SIDE]
    assert [kind.__name__ for kind in kinds if not (kind.name and kind.says)] == []
    assert [kind.name for kind in kinds if not is_same_when_pickled(kind)] == []


def is_same_when_pickled(kind: type[KafkaError]) -> bool:
    error = kind("why", topic="t", partition=0)
    copy = pickle.loads(pickle.dumps(error))
    return (type(copy), str(copy), copy.topic, copy.partition) == (kind, str(error), "t", 0)


def test_the_names_of_classes_and_codes_agree() -> None:
    assert (NotLeaderOrFollower.__name__, NotLeaderOrFollower.code) == ("NotLeaderOrFollower", 6)
    assert error_of(6) is NotLeaderOrFollower
    assert (errors.InvalidTopic.name, errors.InvalidTopic.code) == ("INVALID_TOPIC_EXCEPTION", 17)


def test_a_code_that_is_too_new_is_named() -> None:
    kind = error_of(999)
    assert issubclass(kind, UnknownServerError)
    assert (kind.code, kind.name, kind.retriable) == (999, "ERROR_999", False)
    assert "error code 999" in str(kind())
    assert type(pickle.loads(pickle.dumps(kind("why")))) is kind


def test_what_may_be_tried_again_on_our_side() -> None:
    assert {kind for kind in CLIENT_SIDE if kind.retriable} == {
        ConnectionLost,
        NotABroker,
        RequestTimeout,
        Unreachable,
    }
    assert ConnectionLost.refresh_metadata
    assert not UnsupportedBroker.retriable
