"""Message bodies for the tests of the wire protocol, drawn from the tables that the client itself is made from."""

from __future__ import annotations

from struct import calcsize
from typing import Any

from hypothesis import strategies as st

from penstock.wire.protocol.frames import APIS
from penstock.wire.protocol.message_schema import Api, Direction, Field, fields_of
from penstock.wire.protocol.types import FIXED

Case = tuple[Api, Direction, int]
DIRECTIONS: tuple[Direction, Direction] = ("request", "response")
CASES: list[Case] = [
    (api, direction, version)
    for api in APIS.values()
    for direction in DIRECTIONS
    for version in range(api.versions[0], api.versions[1] + 1)
]
BYTES = st.binary(max_size=9)


def case_name(case: Case) -> str:
    return f"{case[0].name}-{case[1]}-{case[2]}"


def bodies(case: Case, sparse: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of a message; sparse ones lack some fields, so that these take their defaults."""
    api, direction, version = case
    return _struct(fields_of(api, direction), version, sparse)


def filled(case: Case, body: dict[str, Any]) -> dict[str, Any]:
    """The body as it is read back: with every field of the table."""
    return _filled(fields_of(case[0], case[1]), body)


def _struct(fields: tuple[Field, ...], version: int, sparse: bool) -> st.SearchStrategy[dict[str, Any]]:
    values = {field.name: _value(field, version, sparse) for field in fields if field.is_in(version)}
    return st.fixed_dictionaries({}, optional=values) if sparse else st.fixed_dictionaries(values)


def _value(field: Field, version: int, sparse: bool) -> st.SearchStrategy[Any]:
    one = _struct(field.fields, version, sparse) if field.fields else _primitive(field.kind)
    value = st.lists(one, min_size=0 if sparse else 1, max_size=3) if field.array else one
    return st.none() | value if sparse and field.may_be_null(version) else value


def _primitive(kind: str) -> st.SearchStrategy[Any]:
    if kind in ("string", "bytes", "records"):
        return st.text(max_size=9) if kind == "string" else BYTES
    if kind in ("bool", "uuid"):
        return st.booleans() if kind == "bool" else st.binary(min_size=16, max_size=16)
    bits = 8 * calcsize(FIXED[kind])
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _filled(fields: tuple[Field, ...], body: dict[str, Any]) -> dict[str, Any]:
    return {field.name: _filled_value(field, body.get(field.name, field.default)) for field in fields}


def _filled_value(field: Field, value: Any) -> Any:
    if field.array:
        return value if value is None else [_filled(field.fields, one) if field.fields else one for one in value]
    return _filled(field.fields, value) if field.fields else value
