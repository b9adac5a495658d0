"""Our bytes and Kafka's own: every message, version and error code compared with the Java client's."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from java_kafka import JavaKafka, definition, java_kafka
from wire_bodies import CASES, DIRECTIONS, Case, bodies, case_name, filled

from penstock.wire import errors
from penstock.wire.errors import CODES, error_of
from penstock.wire.protocol import frames
from penstock.wire.protocol.message_schema import Api, Direction, Field, Versions, fields_of

FEW = settings(
    max_examples=6,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

# Version 0 of DescribeConfigs has a field that Kafka 4 no longer has.
DROPPED = {"results.configs.isdefault": {"ignorable": False}}


@pytest.fixture(scope="module")
def newest() -> Iterator[JavaKafka]:
    with java_kafka("kafka") as java:
        yield java


@pytest.fixture(scope="module")
def older() -> Iterator[JavaKafka]:
    with java_kafka("spark") as java:
        yield java


@pytest.mark.slow_after(100)
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_java_writes_the_same_bytes_and_reads_ours(case: Case, newest: JavaKafka, older: JavaKafka) -> None:
    api, direction, version = case
    # Spark's client is older than the broker's and still knows the versions that Kafka 4 dropped.
    java = newest if newest.versions(api)[0] <= version else older

    @FEW
    @given(bodies(case, sparse=False) | bodies(case))
    def check(body: dict[str, Any]) -> None:
        theirs = java.message(api, direction, version, in_json(fields_of(api, direction), filled(case, body), version))
        written = java.written(theirs, version)
        frame, header = frame_of(case, body)
        assert frame[header:] == written
        parsed = java.parsed(api, direction, version, frame, theirs)
        assert parsed == (77, "ä client" if direction == "request" else None, True, 0)
        assert read(case, frame[:header] + written) == filled(case, body)

    check()


def test_we_speak_what_java_speaks(newest: JavaKafka) -> None:
    for api in frames.APIS.values():
        oldest, latest = newest.versions(api)
        assert api.versions[1] == latest, api
        # Kafka 1.0 supports version 1 of each API whose version 0 we leave out.
        assert api.versions[0] <= max(oldest, 1), api


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("api", frames.APIS.values(), ids=lambda api: api.name)
def test_defaults_nulls_and_what_must_not_be_lost_are_those_of_java(api: Api, direction: Direction) -> None:
    theirs = definition(api, direction)
    shared = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", ())}
    in_java = dict(definitions(theirs["fields"], shared))
    for path, field, versions, always in by_path(fields_of(api, direction), api.versions):
        java = in_java.get(path, DROPPED.get(path))
        assert java, path
        assert field.default == in_python(java.get("default"), field), path
        assert field.ignorable == bool(java.get("ignorable") or always), path
        for version in range(versions[0], versions[1] + 1):
            assert field.may_be_null(version) == is_in(version, java.get("nullableVersions", "none")), path


def by_path(
    fields: tuple[Field, ...], around: Versions, above: str = ""
) -> Iterator[tuple[str, Field, Versions, bool]]:
    """Each field by its path, its versions, and whether these are all versions of the struct around it."""
    for field in fields:
        path = above + field.name.replace("_", "")
        versions = max(field.versions[0], around[0]), min(field.versions[1], around[1])
        yield path, field, versions, versions == around
        yield from by_path(field.fields, versions, path + ".")


def in_python(written: Any, field: Field) -> Any:
    """A default value as in Java's definition: a string or nothing."""
    if field.array or field.fields:
        return () if field.array else {}
    if written is None:
        return {"string": "", "bytes": b"", "uuid": bytes(16), "records": None}.get(field.kind, 0)
    text = str(written).lower()
    if text == "null" or field.kind == "string":
        return None if text == "null" else written
    return text == "true" if field.kind == "bool" else int(text, 0)


def is_in(version: int, written: str) -> bool:
    """Whether a version is in a range as in Java's definition: "none", "3", "3-5" or "3+"."""
    first, _, last = written.removesuffix("+").partition("-")
    if written == "none":
        return False
    return int(first) <= version and (written.endswith("+") or version <= int(last or first))


def definitions(fields: list[Any], shared: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Java's definition of each field, by its path."""
    for field in fields:
        path = above + field["name"].lower()
        yield path, field
        inner = field.get("fields") or shared.get(field["type"].removeprefix("[]"), [])
        yield from definitions(inner, shared, path + ".")


def test_every_error_code_has_a_class_with_the_flags_of_java(newest: JavaKafka) -> None:
    theirs = newest.errors()
    del theirs[0]  # no error
    ours = {code: (kind.name, kind.retriable, kind.refresh_metadata) for code, kind in CODES.items()}
    assert {code: ours.get(code) for code in theirs} == theirs
    for code in theirs:
        kind = error_of(code)
        assert kind.code == code
        assert getattr(errors, kind.__name__) is kind


def frame_of(case: Case, body: dict[str, Any]) -> tuple[bytes, int]:
    """A frame without its length, and the size of the header in it."""
    api, direction, version = case
    if direction == "request":
        frame = b"".join(frames.request(api, version, 77, "ä client", body))
        return frame[4:], 8 + 2 + len("ä client".encode()) + api.is_flexible(version)
    frame = b"".join(frames.encode_response(api, version, 77, body))
    return frame[4:], 4 + (api.is_flexible(version) and api is not frames.API_VERSIONS)


def read(case: Case, frame: bytes) -> dict[str, Any]:
    api, direction, version = case
    if direction == "request":
        return frames.decode_request(frame)[-1]
    return frames.response(api, version, frame)


def in_json(fields: tuple[Field, ...], body: dict[str, Any], version: int) -> dict[str, Any]:
    """A body in the form of Java's JSON converter: the fields of this version, with Java's names."""
    return {camel(field.name): value_in_json(field, body[field.name], version) for field in present(fields, version)}


def present(fields: tuple[Field, ...], version: int) -> list[Field]:
    return [field for field in fields if field.is_in(version)]


def value_in_json(field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.array:
        return [one_in_json(field, one, version) for one in value]
    return one_in_json(field, value, version)


def one_in_json(field: Field, value: Any, version: int) -> Any:
    if field.fields:
        return in_json(field.fields, value, version)
    if field.kind == "uuid":
        return urlsafe_b64encode(value).decode().rstrip("=")
    return b64encode(value).decode() if isinstance(value, bytes) else value


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
