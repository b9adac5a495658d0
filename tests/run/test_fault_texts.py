"""Texts of errors, which may come from anywhere: what they cost, and which modules they may name."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from growth import assert_linear

import penstock
from penstock.errors import PenstockError
from penstock.metrics.delays import reason_of
from penstock.run.faults import MODULES, _from_traceback, _lines, advised
from penstock.wire.errors import KafkaError

PIECES = ("\n \n", " ", "\t", "penstock.a", " x\npenstock.a: b\n", "a.", "\n", 'File "a", line 1', "A")


def test_all_modules_whose_errors_end_queries_are_known() -> None:
    programs = (
        "penstock.watch.",
        "penstock.ingest.",
        "penstock.serve.",
        "penstock.cli.",
        "penstock.connect.",
        "penstock.console.",
    )
    found = set()
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if module.name.startswith(programs) or module.name.endswith("__main__"):
            continue
        names = vars(importlib.import_module(module.name)).values()
        kinds = [kind for kind in names if isinstance(kind, type) and issubclass(kind, (PenstockError, KafkaError))]
        found |= {kind.__module__ for kind in kinds if kind.__module__ == module.name}
    assert found == MODULES


@pytest.mark.parametrize(
    "piece", ["\n \n", " ", "\t", "penstock.a", " x\npenstock.a: b\n", "a.", "\n", 'File "a", line 1']
)
def test_reading_an_error_costs_as_much_as_it_is_long(piece: str) -> None:
    assert_linear(lambda size: _from_traceback(f" x\npenstock.a: {piece * (size // len(piece))}"), 40_000)
    assert_linear(lambda size: _lines(piece * (size // len(piece))), 40_000)
    assert_linear(lambda size: reason_of(piece * (size // len(piece))), 40_000)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "The message is 20 bytes when serialized which is larger than 9, which is the value of the max.request.size"
            " configuration.",
            r"configuration\. Next: raise max\.request\.size .*producer\.override\.max\.request\.size$",
        ),
        (
            "The request included a message larger than the max message size the server will accept.",
            r"accept\. Next: raise max\.message\.bytes of the topic",
        ),
        ("Something else.", "Something else.$"),
    ],
)
def test_messages_of_the_java_client_about_sizes_say_what_to_raise(said: str, shown: str) -> None:
    assert re.search(shown, advised(said))
