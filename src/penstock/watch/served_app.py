"""`/metrics`, `/health`, `/ready` and `/status` of a command that serves HTTP itself, at its own port.

Requests are counted by the template of their path, of which there are few. Loads no Spark.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import traceback
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from penstock.serve.access.hosts import Message, Receive, Send
from penstock.watch.program import TYPE, Program, exposition, head, iso

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of answer times, in seconds."""
OTHER = "other"
"""The path of requests for which there is no route."""
READY = 10.0
"""Seconds after which the answer says that the check has not ended."""
ERRORS = 20
MOST_ERROR = 10_000
"""Most bytes of an error answer that are stored for the status."""


def observed(app: Starlette, program: Program, unready: Callable[[], list[str]], *, is_open: bool = False) -> Starlette:
    """The application with the pages that each command has; the others are counted.

    `unready` gives the reasons why the command cannot do its work now; it may block. If the server `is_open` to other
    machines, its status has neither the command line nor errors, which may name addresses.
    """
    meter, check = HttpMeter(app), _ReadyCheck(unready)
    if is_open:
        program = replace(program, command="")

    async def metrics(request: Request) -> Response:
        return Response(exposition([meter]), media_type=TYPE)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        why = await check.problems()
        return JSONResponse({"status": "unavailable" if why else "ok", "problems": why}, 503 if why else 200)

    async def status(request: Request) -> Response:
        return JSONResponse({**head(program, time.time()), **meter.to_dict(with_errors=not is_open)})

    pages = {"/metrics": metrics, "/health": health, "/ready": ready, "/status": status}
    with_pages = Starlette(routes=[Route(path, page) for path, page in pages.items()])
    # Not a mount below "/": that would take a POST to a page before the page refuses it.
    with_pages.router.default = meter
    return with_pages


class _ReadyCheck:
    """Asks for the reasons in a thread of the event loop's own, once for all callers that come meanwhile.

    The application's threads may all wait for what does not answer, and so may the check itself.
    """

    def __init__(self, unready: Callable[[], list[str]]) -> None:
        self._unready = unready
        self._running: asyncio.Task[list[str]] | None = None

    async def problems(self) -> list[str]:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._unready))
        done, _ = await asyncio.wait([self._running], timeout=READY)
        return self._running.result() if done else [f"the check has not ended within {READY:.0f} s"]


class HttpMeter(Collector):
    """Passes requests to an application, and counts them."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: dict[str, float] = defaultdict(float)
        self._errors: deque[dict[str, Any]] = deque(maxlen=ERRORS)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer as the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, began, status, said = self._path(scope), time.perf_counter(), 500, b""

        async def counted(message: Message) -> None:
            nonlocal status, said
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 500 and len(said) < MOST_ERROR:
                said += message.get("body", b"")
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            # The application has answered with 500; the web server writes the error to its log.
            what = "".join(traceback.format_exception_only(error)).strip()
            self._note(path, {"what": what, "trace": "".join(traceback.format_exception(error))[-MOST_ERROR:]})
            raise
        else:
            if status >= 500:
                self._note(path, _parsed(said))
        finally:
            self._count(path, status, time.perf_counter() - began)

    def _path(self, scope: Mapping[str, Any]) -> str:
        """The template of the path, as in `/state/{name:path}`."""
        routes = (route for route in self._app.routes if route.matches(scope)[0] is not Match.NONE)  # type: ignore[arg-type]
        return next((route.path for route in routes if isinstance(route, Route)), OTHER)

    def _count(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            self._times[path][bisect_left(BOUNDS, seconds)] += 1
            self._seconds[path] += seconds

    def _note(self, path: str, about: Mapping[str, str]) -> None:
        empty = {"query": "", "what": "", "where": path, "next": "", "trace": ""}
        with self._lock:
            self._errors.append({"at": iso(time.time()), **empty, **about})

    def to_dict(self, *, with_errors: bool) -> dict[str, Any]:
        """The fields of the status besides its head."""
        with self._lock:
            requests = [{"path": path, "status": status, "count": n} for (path, status), n in self._requests.items()]
            errors = list(self._errors) if with_errors else []
        graph: dict[str, list[Any]] = {"nodes": [], "edges": []}
        return {
            "state": "running",
            "waits_for": "",
            "graph": graph,
            "queries": [],
            "requests": requests,
            "errors": errors,
        }

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "penstock_http_requests", "Requests answered, by the template of their path", labels=("path", "status")
        )
        times = HistogramMetricFamily(
            "penstock_http_request_duration_seconds", "From a request to the end of its answer", labels=("path",)
        )
        with self._lock:
            for (path, status), count in self._requests.items():
                requests.add_metric((path, str(status)), count)
            for path, counts in self._times.items():
                buckets = zip([*map(str, BOUNDS), "+Inf"], accumulate(counts), strict=True)
                times.add_metric((path,), list(buckets), self._seconds[path])
        yield requests
        yield times


def _parsed(said: bytes) -> dict[str, str]:
    """What an answer with an error says, as `rest_errors.error_response` writes it."""
    try:
        answer = json.loads(said[:MOST_ERROR])
        return {
            "what": str(answer["error"]),
            "where": str(answer.get("where", "")),
            "next": str(answer.get("next", "")),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"what": said[:MOST_ERROR].decode(errors="replace")}
