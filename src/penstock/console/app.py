"""The console as an ASGI application: the page's files, the API, its description, and what monitors ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from penstock.console.calls import call_of
from penstock.console.error_answers import ErrorAnswers, SafeJSONResponse, error_answer
from penstock.console.openapi import description
from penstock.console.panels import ApiRoute, ConsolePanel
from penstock.console.routes import PANELS
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError
from penstock.serve.access import page as page_security
from penstock.serve.access.hosts import Asgi, Message, Receive, Send
from penstock.wire.errors import KafkaError

PAGE = Path(__file__).parent / "page/static"
LONGEST_PATH = 4000
"""In characters. Python makes no number of more digits than that, which a part of a path may be."""


def app(systems: WatchedSystems, panels: Sequence[ConsolePanel] = PANELS) -> Asgi:
    """The application; `penstock.serve.access.hosts.guarded` must stand before it."""
    metrics, errors = Metrics(systems), ErrorAnswers(panels)

    async def document(request: Request) -> Response:
        return JSONResponse(description(panels))

    routes: list[BaseRoute] = [
        *(
            Route(route.path, _answering(route, systems, metrics, errors), methods=[route.method])
            for route in _by_length(panels)
        ),
        Route("/openapi.json", document),
        Route("/health", _health),
        Route("/metrics", metrics.answer),
        Route("/", _page),
        Mount("/static", StaticFiles(directory=PAGE, check_dir=False)),
    ]
    handlers = {
        PenstockError: errors.penstock,
        KafkaError: errors.kafka,
        HTTPException: errors.http,
        Exception: errors.unknown,
    }
    return _secured(Starlette(routes=routes, lifespan=systems.running, exception_handlers=handlers))


def _by_length(panels: Sequence[ConsolePanel]) -> list[ApiRoute]:
    """The routes, those with more parts first: a part may have slashes in it."""
    return sorted((route for panel in panels for route in panel.routes), key=lambda route: -route.path.count("/"))


class Metrics(Collector):
    """The console's own metrics."""

    def __init__(self, systems: WatchedSystems) -> None:
        self._systems = systems
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
            runs.add_metric([word], sum(run.reachable is wanted for run in self._systems.runs.all()))
        streams = GaugeMetricFamily("penstock_console_streams", "Open streams of events", self._systems.streams.open)
        requests = CounterMetricFamily("penstock_console_requests", "Answered requests", labels=["route", "status"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield from (build, runs, streams, requests)

    async def answer(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def _answering(
    route: ApiRoute, systems: WatchedSystems, metrics: Metrics, errors: ErrorAnswers
) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        if request.method != route.method:
            # Starlette answers HEAD as GET, which for a stream of events never ends.
            raise HTTPException(405, headers={"Allow": route.method})
        try:
            page_security.require_allowed(request, systems.settings.token)
            answer = await route.answer(systems, call_of(route.path, route.parameters, request))
            response = answer if isinstance(answer, Response) else SafeJSONResponse(answer)
        except PenstockError as error:
            response = await errors.penstock(request, error)
        except KafkaError as error:
            response = await errors.kafka(request, error)
        except RecursionError:
            path = request.url.path[:200]
            response = error_answer(502, "the answer is nested too deeply", path, "look at it with another program")
        # Records and configurations are not for the browser's disk.
        response.headers["Cache-Control"] = "no-store"
        metrics.count(route, response.status_code)
        return response

    return answered


async def _page(request: Request) -> Response:
    return FileResponse(PAGE / "index.html", media_type="text/html")


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "version": __version__})


def _secured(inner: Asgi) -> Asgi:
    """Adds the headers of security to each answer."""
    page = PAGE / "index.html"
    policy = page_security.policy(page.read_text() if page.exists() else "")
    too_long = error_answer(414, "the address is too long", "path", "see /openapi.json")
    added = [(name.lower().encode(), value.encode()) for name, value in page_security.headers(policy).items()]

    async def secured(scope: Any, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in added if header[0] not in present)]
            await send(message)

        answering = too_long if len(scope.get("path", "")) > LONGEST_PATH else inner
        await answering(scope, receive, sending)

    return secured
