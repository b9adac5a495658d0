"""Frames of every API and version: written frames are read back, damaged ones are refused with their position."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from wire_bodies import CASES, Case, bodies, case_name, filled

from penstock.wire.errors import MalformedResponse, UnsupportedBroker, UnsupportedVersion
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import API_VERSIONS, FETCH, FIND_COORDINATOR, METADATA, PRODUCE, Message

# A few examples are enough for each of the hundreds of cases.
FEW = settings(max_examples=8, database=None, suppress_health_check=list(HealthCheck))
ONCE = settings(FEW, max_examples=1, phases=[Phase.generate])
ALL = pytest.mark.parametrize("api", list({case[0].name: None for case in CASES}))


def check_each(api: str, check: Callable[[Case], None]) -> None:
    """Check both messages of an API in each version; all that fail are listed, with their examples."""
    wrong = []
    for case in CASES:
        if case[0].name == api:
            try:
                check(case)
            except Exception as error:
                example = "\n".join(getattr(error, "__notes__", ()))
                wrong.append(f"{case_name(case)}: {type(error).__name__}: {error}\n{example}")
    assert not wrong, "\n".join(wrong)


def frame_of(case: Case, body: Message) -> bytes:
    """The complete frame of a message, without its length."""
    api, direction, version = case
    if direction == "request":
        chunks = frames.request(api, version, 77, "a client", body)
    else:
        chunks = frames.encode_response(api, version, 77, body)
    frame = b"".join(chunks)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


def read(case: Case, frame: bytes) -> Message:
    api, direction, version = case
    if direction == "response":
        return frames.response(api, version, frame)
    found, *header, body = frames.decode_request(frame)
    assert (found, header) == (api, [version, 77, "a client"])
    return body


def is_fall_back(case: Case, body: Message) -> bool:
    """Whether this is the only answer that comes in another version than its request."""
    return case[:2] == (API_VERSIONS, "response") and body.get("error_code") == UnsupportedVersion.code


@ALL
def test_a_message_is_read_as_it_was_written(api: str) -> None:
    check_each(api, check_round_trip)


def check_round_trip(case: Case) -> None:
    @FEW
    @given(bodies(case, sparse=False) | bodies(case))
    def check(body: dict[str, Any]) -> None:
        if not is_fall_back(case, body):
            assert read(case, frame_of(case, body)) == filled(case, body)

    check()


@ALL
def test_a_frame_cut_at_any_byte_is_refused(api: str) -> None:
    check_each(api, check_cuts)


def check_cuts(case: Case) -> None:
    @ONCE
    @given(bodies(case, sparse=False))
    def check(body: dict[str, Any]) -> None:
        frame = frame_of(case, body)
        for size in range(len(frame)):
            with pytest.raises(MalformedResponse) as caught:
                read(case, frame[:size])
            assert size < 10 or "byte " in str(caught.value)

    check()


@pytest.mark.slow_after(8)
@ALL
def test_wrong_bytes_are_refused_or_read_but_nothing_else(api: str) -> None:
    check_each(api, check_wrong_bytes)


def check_wrong_bytes(case: Case) -> None:
    @FEW
    @given(bodies(case, sparse=False), st.data())
    def check(body: dict[str, Any], data: st.DataObject) -> None:
        frame = bytearray(frame_of(case, body))
        first = 10 if case[1] == "request" else 4  # after the API and the version
        for at in data.draw(st.lists(st.integers(first, len(frame) - 1), min_size=1, max_size=3)):
            frame[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        try:
            frames.decode_request(frame) if case[1] == "request" else frames.response(case[0], case[2], frame)
        except MalformedResponse as error:
            assert f"{case[0].name} {case[1]}, version {case[2]}" in str(error) or case[0] is API_VERSIONS

    check()


@pytest.mark.parametrize("version", [8, 9])
def test_a_length_beyond_the_frame_costs_no_memory(version: int) -> None:
    count = b"\x7f\xff\xff\xff" if version == 8 else b"\xff\xff\xff\xff\x07"
    frame = b"\0\0\0\1" + (b"" if version == 8 else b"\0") + count
    tracemalloc.start()
    try:
        with pytest.raises(MalformedResponse, match=rf"Produce response, version {version}, byte .* bytes announced"):
            frames.response(PRODUCE, version, frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_records_are_passed_on_without_a_copy() -> None:
    first, second = bytearray(b"first"), memoryview(b"second")
    partitions = [{"index": 0, "records": [first, second]}, {"index": 1, "records": first}]
    chunks = frames.request(PRODUCE, 9, 1, None, {"topic_data": [{"name": "t", "partition_data": partitions}]})
    assert [one for one in chunks if one is first or one is second] == [first, second, first]


def test_records_are_views_of_the_frame_that_was_read() -> None:
    case: Case = (FETCH, "response", 12)
    frame = frame_of(case, {"responses": [{"topic": "t", "partitions": [{"records": b"some records"}]}]})
    records = read(case, frame)["responses"][0]["partitions"][0]["records"]
    assert (records, records.obj) == (b"some records", frame)
    assert records.obj is frame


def test_a_tagged_field_that_the_table_lacks_is_skipped() -> None:
    case: Case = (FETCH, "response", 16)
    frame = frame_of(case, {"session_id": 5})
    assert frame[-1] == 0
    with_tags = frame[:-1] + bytes([2, 0, 1, 1]) + bytes([99, 3]) + b"new"  # an empty list of endpoints, and tag 99
    assert read(case, with_tags) == filled(case, {"session_id": 5})


def test_a_tagged_field_of_another_size_than_announced_is_refused() -> None:
    frame = frame_of((FETCH, "response", 16), {})[:-1] + bytes([1, 0, 2, 1, 0])
    with pytest.raises(MalformedResponse, match="not have the announced size"):
        frames.response(FETCH, 16, frame)


def test_bytes_behind_the_message_are_refused() -> None:
    frame = frame_of((METADATA, "response", 5), {}) + b"!"
    with pytest.raises(MalformedResponse, match=r"Metadata response, version 5, byte .* 1 bytes are left over"):
        frames.response(METADATA, 5, frame)


def test_the_answer_of_a_broker_that_is_too_old_for_our_first_question_is_read() -> None:
    keys = [{"api_key": 18, "min_version": 0, "max_version": 2}]
    frame = frame_of((API_VERSIONS, "response", 0), {"error_code": UnsupportedVersion.code, "api_keys": keys})
    found = frames.response(API_VERSIONS, 4, frame)
    assert (found["error_code"], found["api_keys"]) == (35, keys)


def test_a_field_that_must_not_be_lost_needs_a_version_that_has_it() -> None:
    body = {"coordinator_keys": ["a", "b"], "key_type": 1}
    assert frames.request(FIND_COORDINATOR, 4, 1, None, body)
    with pytest.raises(UnsupportedVersion, match="FindCoordinator request 3 cannot carry coordinator_keys="):
        frames.request(FIND_COORDINATOR, 3, 1, None, body)


def test_a_field_of_another_version_that_may_be_lost_is_left_out() -> None:
    topic = {"topic_id": bytes(range(16)), "name": "t"}
    by_name = read((PRODUCE, "request", 12), frame_of((PRODUCE, "request", 12), {"topic_data": [topic]}))
    by_id = read((PRODUCE, "request", 13), frame_of((PRODUCE, "request", 13), {"topic_data": [topic]}))
    assert by_name["topic_data"] == [{"name": "t", "topic_id": bytes(16), "partition_data": []}]
    assert by_id["topic_data"] == [{"name": "", "topic_id": bytes(range(16)), "partition_data": []}]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"ack": 1}, "has no field ack"),
        ({"acks": 1 << 15}, "Produce request, version 9"),
        ({"acks": None}, "Produce request, version 9"),
        ({"topic_data": None}, "Produce request, version 9"),
        ({"topic_data": [{"name": None}]}, "Produce request, version 9"),
    ],
)
def test_a_value_that_has_no_place_in_the_message_is_an_error(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        frames.request(PRODUCE, 9, 1, None, body)


def test_a_uuid_of_another_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        frames.request(PRODUCE, 13, 1, None, {"topic_data": [{"topic_id": b"abc"}]})


def test_only_versions_that_we_speak_are_written() -> None:
    with pytest.raises(ValueError, match="Produce is supported in versions 3 to 13, not 14"):
        frames.request(PRODUCE, 14, 1, None, {})


def test_a_request_of_an_unknown_api_is_refused() -> None:
    with pytest.raises(MalformedResponse, match="key 999, version 0"):
        frames.decode_request((999).to_bytes(2, "big") + bytes(20))


@pytest.mark.parametrize(("offered", "chosen"), [((0, 8), 8), ((5, 99), 13), ((13, 13), 13), ((0, 3), 3)])
def test_the_highest_common_version_is_chosen(offered: tuple[int, int], chosen: int) -> None:
    assert frames.common_version(PRODUCE, {0: offered}, "one:9092") == chosen


def test_a_version_can_be_the_last_that_is_for_us() -> None:
    assert frames.common_version(PRODUCE, {0: (0, 13)}, "one:9092", at_most=11) == 11
    with pytest.raises(UnsupportedBroker, match="supports Produce in versions 12 to 13, this client 3 to 11"):
        frames.common_version(PRODUCE, {0: (12, 13)}, "one:9092", at_most=11)


@pytest.mark.parametrize("offered", [(0, 2), (14, 20)])
def test_a_broker_without_a_common_version_is_named_with_both_ranges(offered: tuple[int, int]) -> None:
    low, high = offered
    said = f"one:9092 supports Produce in versions {low} to {high}, this client 3 to 13"
    with pytest.raises(UnsupportedBroker, match=said):
        frames.common_version(PRODUCE, {0: offered}, "one:9092")


def test_a_broker_without_the_api_is_named() -> None:
    said = "one:9092 does not offer Produce, of which this client supports versions 3 to 13"
    with pytest.raises(UnsupportedBroker, match=said):
        frames.common_version(PRODUCE, {}, "one:9092")


def test_a_frame_too_short_for_its_number_is_refused() -> None:
    assert frames.correlation_id(b"\0\0\0\x09rest") == 9
    with pytest.raises(MalformedResponse, match="3 bytes"):
        frames.correlation_id(b"abc")
