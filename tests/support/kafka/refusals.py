"""A broker that refuses requests with any error code: the proxy answers instead of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fault_proxy import FaultProxy, Request

from penstock.wire.errors import KafkaError
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api
from penstock.wire.records.batch_header import read_headers

Kind = type[KafkaError]


class Refusal:
    """Refuses the next request of one API, once for each call of `once`."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._api = frames.PRODUCE
        self._kind: Kind | None = None
        self.asked: list[Request] = []
        """All requests of that API."""
        proxy.ask = self._ask

    def once(self, kind: Kind, api: Api = frames.PRODUCE) -> None:
        assert self._kind is None, f"{self._api.name} was not asked"
        self._api, self._kind = api, kind

    def _ask(self, request: Request) -> Request | bytes:
        if request.api is not self._api:
            return request
        self.asked.append(request)
        kind, self._kind = self._kind, None
        return refused(request, kind) if kind else request


def refused(request: Request, kind: Kind) -> bytes:
    """The answer that refuses every part of the request."""
    return request.answer(_BODIES.get(request.api, _top_level)(request.body, kind.code))


def producer_of(request: Request) -> tuple[int, int]:
    """The producer id and the first sequence number of a Produce request's batch."""
    (header,) = read_headers(request.records)
    return header.producer_id, header.base_sequence


def _top_level(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {"error_code": code}


def _produce(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {
        "responses": [
            {"name": topic["name"], "topic_id": topic["topic_id"]}
            | {
                "partition_responses": [
                    {"index": one["index"], "error_code": code, "base_offset": -1} for one in topic["partition_data"]
                ]
            }
            for topic in asked["topic_data"]
        ]
    }


def _metadata(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {"topics": [{"name": topic["name"], "error_code": code} for topic in asked["topics"]]}


def _find_coordinator(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {"coordinators": [{"key": key, "error_code": code} for key in asked["coordinator_keys"]]}


def _add_partitions(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {"partition_index": p, "partition_error_code": code} for p in topic["partitions"]
                ],
            }
            for topic in asked["v3_and_below_topics"]
        ]
    }


def _txn_offset_commit(asked: dict[str, Any], code: int) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": one["partition_index"], "error_code": code} for one in topic["partitions"]
                ],
            }
            for topic in asked["topics"]
        ]
    }


_BODIES: dict[Api, Callable[[dict[str, Any], int], dict[str, Any]]] = {
    frames.PRODUCE: _produce,
    frames.METADATA: _metadata,
    frames.FIND_COORDINATOR: _find_coordinator,
    frames.ADD_PARTITIONS_TO_TXN: _add_partitions,
    frames.TXN_OFFSET_COMMIT: _txn_offset_commit,
}
