"""Fields whose values the console hides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from penstock.console.reading.masking import Mask
from penstock.process.secret_settings import HIDDEN

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("names", "text", "format", "shown"),
    [
        (["email"], '{"email": "a", "id": 1}', "json", {"email": HIDDEN, "id": 1}),
        (["EMAIL"], '{"eMail": ["a", "b"]}', "json", {"eMail": HIDDEN}),
        (["email"], '[{"a": {"email": {"x": 1}}}]', "avro", [{"a": {"email": HIDDEN}}]),
        (["after.email"], '{"after": {"email": 1}, "before": {"email": 2}}', "json", None),
        (["after.email"], '{"after": [{"email": 1}]}', "json", {"after": [{"email": HIDDEN}]}),
        # JSON in a string of JSON.
        (["email"], '{"payload": "{\\"email\\": 1}"}', "json", {"payload": HIDDEN}),
        (["email"], '{"payload": "nothing"}', "json", {"payload": "nothing"}),
    ],
)
def test_fields_are_hidden_by_name_at_any_depth(names: list[str], text: str, format: str, shown: Any) -> None:
    if shown is None:
        shown = {"after": {"email": HIDDEN}, "before": {"email": 2}}
    assert json.loads(Mask(names).text(text, format)) == shown


@pytest.mark.parametrize(
    ("text", "format", "shown"),
    [
        ('{"email": "cut off', "text", HIDDEN),
        ("email=ann", "text", HIDDEN),
        ("0xff00", "hex", HIDDEN),
        ("user-7", "text", "user-7"),
        ('"a word"', "json", '"a word"'),
        ("[" * 5000 + '"email"', "text", HIDDEN),
    ],
)
def test_what_has_no_fields_is_hidden_if_it_might_show_one(text: str, format: str, shown: str) -> None:
    assert Mask(["email"]).text(text, format) == shown


def test_headers_are_hidden_by_their_name_and_by_what_they_say() -> None:
    found = Mask(["email", "x.trace"]).headers([("Email", "a"), ("trace", "b"), ("note", "email: a"), ("n", None)])
    assert found == [["Email", HIDDEN], ["trace", "b"], ["note", HIDDEN], ["n", None]]


@pytest.mark.parametrize("names", [[], [""], ["."], [" "]])
def test_without_names_nothing_is_hidden(names: list[str]) -> None:
    mask = Mask(names)
    assert not mask
    assert mask.text('{"email": 1}', "json") == '{"email": 1}'
    assert mask.value({"email": 1}) == {"email": 1}


KEYS = st.sampled_from(["a", "b", "email", "Email"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text("xyz", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def _hidden_everywhere(value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            inner == HIDDEN if name.lower() == "email" else _hidden_everywhere(inner) for name, inner in value.items()
        )
    return all(map(_hidden_everywhere, value)) if isinstance(value, list) else True


@given(VALUES)
def test_no_value_of_a_masked_field_is_left(value: Any) -> None:
    assert _hidden_everywhere(json.loads(Mask(["email"]).text(json.dumps([value]), "json")))


def test_deep_values_are_hidden_instead_of_failing() -> None:
    text = '{"a":' * 150 + f'{{"email": "{SECRET}"}}' + "}" * 150
    assert SECRET not in Mask(["email"]).text(text, "json")


@pytest.mark.parametrize("depth", [90, 200, 480, 900])
def test_lists_in_lists_are_looked_through_to_a_depth(depth: int) -> None:
    shown = Mask(["email"]).text("[" * depth + f'"{SECRET}"' + "]" * depth, "json")
    assert (SECRET in shown, HIDDEN in shown) == ((True, False) if depth < 100 else (False, True))


def test_half_of_a_character_stays_an_escape() -> None:
    shown = Mask(["email"]).text('{"email": 1, "city": "\\ud800"}', "json")
    assert json.loads(shown.encode()) == {"email": HIDDEN, "city": "\ud800"}


def test_bytes_in_a_header_may_hold_a_field() -> None:
    hex = f"0x{b'{email: ann}'.hex()}ff"
    assert Mask(["email"]).headers([("trace", hex), ("size", "12")]) == [["trace", HIDDEN], ["size", "12"]]
