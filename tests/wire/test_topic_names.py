"""The names of topics, as `org.apache.kafka.common.internals.Topic` has them."""

from __future__ import annotations

import pytest

from penstock.wire.topic_names import is_topic_name, topic_name


@pytest.mark.parametrize("name", ["a", "shop.orders", "_x-1", "...", "a" * 249, "A", "0"])
def test_a_topic_can_have_this_name(name: str) -> None:
    assert is_topic_name(name) and topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "é", "a\n", "٣", "${topic}"])
def test_a_topic_cannot_have_this_name(name: str) -> None:
    assert not is_topic_name(name)


def test_forbidden_characters_become_underscores() -> None:
    assert topic_name("shop.my table/é") == "shop.my_table__"
