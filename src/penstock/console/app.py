"""The console as an ASGI application: the page's files, the API, its description, and what monitors ask for."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from penstock import __version__
from penstock.codec import exact_json
from penstock.console import routes as console_routes
from penstock.console.data import ConsoleData
from penstock.console.openapi import description
from penstock.console.reading.connect_clusters import ConnectRefused
from penstock.console.reading.data_worker import UNEXPECTED, WorkerError
from penstock.console.reading.topic_list import CHECK_KAFKA
from penstock.console.routes import ROUTES, ApiRoute
from penstock.errors import PenstockError
from penstock.serve.access import page as page_security
from penstock.serve.access.hosts import Asgi, Message, Receive, Send
from penstock.wire.errors import KafkaError

log = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page/static"
LONGEST_PATH = 4000
"""In characters. Python makes no number of more digits than that, which a part of a path may be."""
STATUSES = {
    **dict.fromkeys(("NotFound", "NoSuchState", "NoTopic", "NoKafka", "NoPrometheus"), 404),
    **{"Refused": 403, "AlreadySending": 409, "TooLarge": 413, "PageGone": 499, UNEXPECTED: 500},
}
"""The HTTP status of an error by the name of its class; others are 503 if they are retriable, and else 400."""


class SafeJSONResponse(JSONResponse):
    """What others sent may have what JSON in UTF-8 cannot have: half of a character, or a number that is not finite."""

    def render(self, content: Any) -> bytes:
        try:
            return exact_json.dumps(content, compact=True).encode()
        except ValueError:
            return exact_json.dumps(_finite(content), compact=True, ascii=True).encode()


def _finite(value: Any) -> Any:
    """The value with other numbers as text."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def app(data: ConsoleData) -> Asgi:
    """The application; `penstock.serve.access.hosts.guarded` must stand before it."""
    metrics = Metrics(data)
    routes: list[BaseRoute] = [
        *(Route(one.path, _answering(one, data, metrics), methods=[one.method]) for one in _by_length()),
        Route("/openapi.json", _document),
        Route("/health", _health),
        Route("/metrics", metrics.answer),
        Route("/", _page),
        Mount("/static", StaticFiles(directory=PAGE, check_dir=False)),
    ]
    errors = {PenstockError: _told, KafkaError: _told_kafka, HTTPException: _told_http, Exception: _told_unknown}
    return _secured(Starlette(routes=routes, lifespan=data.running, exception_handlers=errors))


def _by_length() -> list[ApiRoute]:
    """The routes, those with more parts first: a part may have slashes in it."""
    return sorted(ROUTES, key=lambda route: -route.path.count("/"))


class Metrics(Collector):
    """The console's own metrics."""

    def __init__(self, data: ConsoleData) -> None:
        self._data = data
        self._requests: Counter[tuple[str, str]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, route: ApiRoute, status: int) -> None:
        self._requests[f"{route.method} {route.path}", str(status)] += 1

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("penstock_build_info", "The version of penstock", labels=["version"])
        build.add_metric([__version__], 1)
        runs = GaugeMetricFamily("penstock_console_runs", "Runs by whether they answer", labels=["reachable"])
        for word, wanted in (("true", True), ("false", False)):
            runs.add_metric([word], sum(run.reachable is wanted for run in self._data.runs.all()))
        streams = GaugeMetricFamily("penstock_console_streams", "Open streams of events", self._data.streams.open)
        requests = CounterMetricFamily("penstock_console_requests", "Answered requests", labels=["route", "status"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield from (build, runs, streams, requests)

    async def answer(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def _answering(route: ApiRoute, data: ConsoleData, metrics: Metrics) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        if request.method != route.method:
            # Starlette answers HEAD as GET, which for a stream of events never ends.
            raise HTTPException(405, headers={"Allow": route.method})
        try:
            console_routes.allowed(route, request, data.settings.token)
            found = await route.answer(data, console_routes.call_of(route, request))
            response = found if isinstance(found, Response) else SafeJSONResponse(found)
        except PenstockError as error:
            response = await _told(request, error)
        except KafkaError as error:
            response = await _told_kafka(request, error)
        except RecursionError:
            path = request.url.path[:200]
            response = _error(502, "the answer is nested too deeply", path, "look at it with another program")
        # Records and configurations are not for the browser's disk.
        response.headers["Cache-Control"] = "no-store"
        metrics.count(route, response.status_code)
        return response

    return answered


async def _page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", media_type="text/html")


async def _document(request: Request) -> Response:
    return JSONResponse(description())


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    kind = error.kind if isinstance(error, WorkerError) else type(error).__name__
    if isinstance(error, ConnectRefused):
        # The cluster is asked for the page: its refusal of a name is the console's answer, other ones are failures.
        status = error.status if error.status in (404, 409) else 502
    else:
        status = STATUSES.get(kind) or (503 if error.retriable else 400)
    return _error(status, error.what, error.where, error.next)


async def _told_kafka(request: Request, error: Exception) -> Response:
    assert isinstance(error, KafkaError)
    return _error(503, str(error), "Kafka", error.next or CHECK_KAFKA)


async def _told_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:200]}"
    return _error(error.status_code, error.detail, where, "see /openapi.json", dict(error.headers or {}))


async def _told_unknown(request: Request, error: Exception) -> Response:
    log.error("the console failed to answer %s", request.url.path[:200], exc_info=error)
    return _error(500, "the console failed to answer", request.url.path[:200], "see what the console printed")


def _error(status: int, what: str, where: str, next: str, headers: dict[str, str] | None = None) -> Response:
    return SafeJSONResponse({"error": what, "where": where, "next": next}, status, headers)


def _secured(inner: Asgi) -> Asgi:
    """Adds the headers of security to each answer."""
    page = PAGE / "index.html"
    policy = page_security.policy(page.read_text() if page.exists() else "")
    too_long = _error(414, "the address is too long", "path", "see /openapi.json")
    added = [(name.lower().encode(), value.encode()) for name, value in page_security.headers(policy).items()]

    async def secured(scope: Any, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in given)]
            await send(message)

        answering = too_long if len(scope.get("path", "")) > LONGEST_PATH else inner
        await answering(scope, receive, sending)

    return secured
