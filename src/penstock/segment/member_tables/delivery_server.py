"""Deliveries over HTTP: `POST /segments/{name}/deliveries` starts one; the `location` of the answer has its receipt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.errors import PenstockError
from penstock.segment.member_tables.delivery_sync import MODES, DeliveryRun, Receipt, Sync, UnknownSegment
from penstock.serve.access.callers import ApiKeys, RefusedCaller
from penstock.serve.json_bodies import json_body
from penstock.serve.rest_errors import RestError, error_response
from penstock.wire.topic_names import is_topic_name

AT_ONCE = 4
"""Deliveries at a time; others wait."""
KEPT = 1000
"""Errors of finished deliveries to keep."""
MOST = 10_000
"""Maximum bytes of a request."""


def app(deliveries: Deliveries, access: ApiKeys) -> Starlette:
    """The application; `access` has the keys that may deliver to each topic."""

    async def begin(request: Request) -> Response:
        name = request.path_params["name"]
        wanted = _wanted(await json_body(request, MOST))
        _require(access, request, wanted["to"])
        started = await run_in_threadpool(deliveries.begin, name, wanted["to"], wanted["mode"])
        return JSONResponse(started, 202, {"location": f"/segments/{name}/deliveries/{wanted['to']}/{started['run']}"})

    async def receipt(request: Request) -> Response:
        name, to, run = (request.path_params[part] for part in ("name", "to", "run"))
        _require(access, request, to)
        delivery = await run_in_threadpool(deliveries.find, name, to, run)
        if delivery is None:
            return error_response(PenstockError("no such delivery", where=f"{name} to {to}, {run}"), 404)
        return Response(json.dumps(delivery, default=lambda time: time.isoformat()), media_type="application/json")

    routes = [
        Route("/segments/{name}/deliveries", _answered(begin), methods=["POST"]),
        Route("/segments/{name}/deliveries/{to}/{run:uuid}", _answered(receipt)),
    ]
    return Starlette(routes=routes)


def _answered(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            response: Response = await answer(request)
        except RefusedCaller as why:
            return error_response(PenstockError(why.detail, where=request.url.path), why.status)
        except RestError as error:
            return error_response(error, error.status)
        except PenstockError as error:
            return error_response(error, STATUS.get(type(error)))
        return response

    return endpoint


def _require(access: ApiKeys, request: Request, topic: str) -> None:
    access.require(topic, *(_only(request, name) for name in ("authorization", "x-api-key")))


def _only(request: Request, name: str) -> bytes | None:
    """The value of a header; raises RefusedCaller if it comes several times."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise RefusedCaller(400, f"the request has several lines {name}; send one")
    return values[0].encode() if values else None


def _wanted(body: Any) -> dict[str, str]:
    next = 'send {"to": TOPIC, "mode": "full"}, or "changes" for what changed since the last delivery'
    if not isinstance(body, dict) or body.keys() != {"to", "mode"} or body["mode"] not in [*MODES]:
        raise PenstockError("the request does not say what to deliver", where=str(body)[:100], next=next)
    topic = body["to"]
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise PenstockError(f"{topic!r} is not a valid topic name", where="to", next="use letters, digits, . _ and -")
    return body


# Deliveries requested over HTTP: started at once, run in the background, one at a time per segment and destination.
# The database has the state of each; its error is only in memory.


class Busy(PenstockError):
    """Another delivery of the same segment to the same destination is running."""


STATUS = {Busy: 409, UnknownSegment: 404}
"""HTTP's status of an error."""


@dataclass
class Deliveries:
    """Running deliveries; `sync` creates the delivery of a segment to a destination."""

    sync: Callable[[str, str], Sync]
    _running: dict[tuple[str, str], DeliveryRun] = field(default_factory=dict)
    _failed: dict[UUID, str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "delivery"))

    def begin(self, segment: str, to: str, mode: str) -> dict[str, Any]:
        """Start a delivery, or continue an interrupted one; returns its state, also if it already runs.

        Raises Busy if a delivery with another mode is running.
        """
        sync = self.sync(segment, to)
        with self._lock:
            run = self._running.get((segment, to))
            if run is not None and run.mode != mode:
                raise Busy(
                    f"a delivery of {segment} to {to} with mode {run.mode} is running",
                    where=f"delivery {run.id}",
                    next="wait until it is done, then send the request again",
                )
            if run is None:
                run = self._running[segment, to] = sync.begin(mode)
                self._pool.submit(sync.finish, run).add_done_callback(lambda done: self._done(sync, run, done))
        return self._to_json(sync, run.id, "running")

    def find(self, segment: str, to: str, run: UUID) -> dict[str, Any] | None:
        """The receipt of a finished delivery or the state of another; None if there is no such delivery."""
        sync = self.sync(segment, to)
        with self._lock:
            running, error = self._running.get((segment, to)), self._failed.get(run)
        if running is not None and running.id == run:
            return self._to_json(sync, run, "running")
        receipt = sync.find(run)
        if isinstance(receipt, Receipt):
            return {"state": "done", **asdict(receipt)}
        if receipt is None:
            return None
        return (
            {**self._to_json(sync, run, "failed"), "error": error} if error else self._to_json(sync, run, "interrupted")
        )

    def close(self) -> None:
        """Wait for running deliveries."""
        self._pool.shutdown()

    def _done(self, sync: Sync, run: DeliveryRun, done: Future[Receipt]) -> None:
        with self._lock:
            del self._running[sync.segment, sync.destination]
            if error := done.exception():
                self._failed[run.id] = str(error)
                for old in list(self._failed)[:-KEPT]:
                    del self._failed[old]

    def _to_json(self, sync: Sync, run: UUID, state: str) -> dict[str, Any]:
        return {"state": state, "segment": sync.segment, "destination": sync.destination, "run": str(run)}
