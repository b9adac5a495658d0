"""JSON whose numbers keep all digits, against Python's own reader of decimals."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from penstock.codec import exact_json

NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | NUMBERS.map(exact_json.loads),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(NUMBERS)
def test_a_number_has_all_its_digits_and_comes_back_with_them(text: str) -> None:
    found = exact_json.loads(text)
    wanted = json.loads(text, parse_float=Decimal)
    assert Decimal(str(found)).compare_total(Decimal(str(wanted))) == 0
    assert exact_json.loads(exact_json.dumps(found)) == found
    assert Decimal(exact_json.dumps([found])[1:-1]) == Decimal(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_a_float_has_as_it_is_written_is_a_float(value: float) -> None:
    found = exact_json.loads(repr(value))
    assert type(found) is float and (found, math.copysign(1, found)) == (value, math.copysign(1, value))


@given(VALUES, st.booleans(), st.booleans())
def test_values_come_back(value: Any, compact: bool, ascii: bool) -> None:
    text = exact_json.dumps(value, compact=compact, ascii=ascii)
    assert exact_json.loads(text) == value and (text.isascii() or not ascii)


@given(VALUES)
def test_a_value_is_written_as_by_python_whether_it_has_decimals_or_not(value: Any) -> None:
    text = exact_json.dumps([value, Decimal("0.10")])
    assert text == f"[{exact_json.dumps(value)}, 0.10]"


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e99999999999", "-1e-99999999999", "01", "1.", "{", "[1,]"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|exponent|delimiter|value|Extra|name|trailing comma"):
        exact_json.loads(text)


@pytest.mark.parametrize("value", [float("nan"), [Decimal("0.1"), float("inf")], Decimal("NaN"), [Decimal(1), b"x"]])
def test_what_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        exact_json.dumps(value)
    assert exact_json.dumps(value, other=lambda one: '"?"').count('"?"') == 1
