"""The API of the console: each route with its parameters, its answer and its description for OpenAPI."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.console.data import ConsoleData, Json
from penstock.console.event_stream import event
from penstock.console.reading import long_history
from penstock.console.reading.connect_clusters import ACTIONS
from penstock.console.reading.data_worker import WorkerError
from penstock.console.reading.topic_list import TopicList
from penstock.errors import PenstockError
from penstock.serve.access import page as page_security
from penstock.serve.access.page import Refused
from penstock.serve.http_client import fetch
from penstock.serve.json_bodies import json_body
from penstock.serve.rest_errors import GONE, RestError

LONGEST = 2000
"""The longest value of a parameter in characters."""
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class NotFound(PenstockError):
    """What the address names does not exist."""


class PageGone(PenstockError):
    """The page does not wait for the answer any more."""


class TooLarge(PenstockError):
    """The request's body is larger than the console takes."""


_BODY_ERRORS: dict[int, tuple[type[PenstockError], str]] = {
    413: (TooLarge, "send less with each request"),
    GONE: (PageGone, "send it again"),
}
"""By the status of an error in reading a body, its class here and what to do next."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query string; `choices` are all its values, if there are only a few."""

    name: str
    text: str
    choices: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class ApiRoute:
    """A route; `returns` is the name of its answer's schema, "events" for a stream, "file" for a download."""

    path: str
    summary: str
    answer: Callable[[ConsoleData, Call], Awaitable[Any]]
    returns: str
    parameters: tuple[Parameter, ...] = ()
    method: str = "GET"
    body: str = ""


@dataclass(frozen=True)
class Call:
    """A request whose parameters are known ones; `path` are the parts of the address."""

    request: Request
    path: Json
    query: dict[str, str]

    @property
    def topic(self) -> str:
        topic: str = self.path["topic"]
        if not TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise NotFound(f"{topic[:100]!r} is not a name of a topic", next="choose one of /api/topics")
        return topic

    @property
    def kafka(self) -> str | None:
        """The Kafka that the request names."""
        return self.query.get(KAFKA.name)

    async def body(self) -> Json:
        """The body as a JSON object; raises PenstockError for another one, and TooLarge."""
        if self.request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise PenstockError("the body is not JSON", next="send it with the header Content-Type: application/json")
        try:
            found = await json_body(self.request)
        except RestError as error:
            kind, next = _BODY_ERRORS.get(error.status, (PenstockError, "see /openapi.json for its form"))
            raise kind(error.what, next=next) from None
        if found is not None and not isinstance(found, dict):
            raise PenstockError("the body is not a JSON object", next="see /openapi.json for its form")
        return found or {}


async def while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result; if the page goes, the work is cancelled. Raises PageGone.

    A page that is left or loaded again would else keep others from the process that reads records.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise PageGone("the page does not wait for the answer any more", next="ask again")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def call_of(route: ApiRoute, request: Request) -> Call:
    """The call with its parameters; raises PenstockError for one that is unknown, given twice or too long."""
    known = {one.name: one for one in route.parameters}
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            step = f"give {', '.join(known)}" if known else "give none"
            raise PenstockError(f"there is no parameter {name[:100]!r}", where=route.path, next=step)
        if name in query:
            raise PenstockError(f"{name} is given twice", where=route.path, next="give it once")
        if len(value) > LONGEST:
            raise PenstockError(f"{name} has more than {LONGEST} characters", where=route.path, next="give less")
        if value and (choices := known[name].choices) and value not in choices:
            step = f"give {' or '.join(choices)}"
            raise PenstockError(f"{name} is not one of its values: {value[:100]!r}", where=route.path, next=step)
        if value and known[name].whole and not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise PenstockError(f"{name} is not a number: {value[:100]!r}", where=route.path, next="give 0 or more")
        if value:
            query[name] = value
    return Call(request, request.path_params, query)


async def _overview(data: ConsoleData, call: Call) -> Any:
    await data.ready()
    return data.overview()


async def _pipeline(data: ConsoleData, call: Call) -> Any:
    await data.ready()
    found = await asyncio.to_thread(data.run, call.path["id"])
    if found is None:
        raise NotFound(f"there is no pipeline {call.path['id'][:200]}", next="choose one of /api/overview")
    return found


async def _events(data: ConsoleData, call: Call) -> Response:
    await data.runs.looked.wait()
    data.changes.look()
    return data.streams.response(data.changes.events(call.request.headers.get("last-event-id", "")))


async def _history(data: ConsoleData, call: Call) -> Any:
    pipeline, query, span = (call.query.get(name, "") for name in ("pipeline", "query", "range"))
    return await long_history.history(data.settings.prometheus, pipeline, query, span or "1h")


async def _topics(data: ConsoleData, call: Call) -> Any:
    await data.ready()
    topics = await _kafka(data, call)
    listed = await topics.listed(data.readers_and_writers(topics.brokers.servers))
    left_out = {"name": None, "listed": len(listed), "topics": len(listed) + topics.left_out}
    return [*listed, *([left_out] if topics.left_out else [])]


async def _kafka(data: ConsoleData, call: Call) -> TopicList:
    """The topics of the Kafka that the request means, once all runs were asked for theirs."""
    await data.runs.looked.wait()
    return data.kafkas.topics(call.kafka)


async def _record_arguments(data: ConsoleData, call: Call) -> Json:
    """What the worker needs to read records of a topic."""
    if not data.settings.messages:
        raise Refused("the console shows no messages", next="start it without --no-messages")
    settings = data.settings
    return {
        "kafka": (await _kafka(data, call)).brokers.as_json(),
        "parameters": {**call.query, "topic": call.topic},
        "mask": list(settings.mask),
        "registry": settings.registry,
    }


async def _records(data: ConsoleData, call: Call) -> Any:
    arguments = await _record_arguments(data, call)
    return await while_connected(call.request, data.worker.call("records", **arguments))


async def _tail(data: ConsoleData, call: Call) -> Response:
    arguments = await _record_arguments(data, call)

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(data.worker.items("tail", **arguments)) as items:
            try:
                async for item in items:
                    yield event("records", json.dumps(item))
            except PenstockError as error:
                # The answer has begun: its status can no longer say it.
                yield event("problem", json.dumps({"error": error.what, "where": error.where, "next": error.next}))

    return data.streams.response(events())


async def _download(data: ConsoleData, call: Call) -> Response:
    form = call.query.get("as", "ndjson")
    arguments = (await _record_arguments(data, call)) | {"form": form}
    chunks = data.worker.items("download", **arguments)
    # The first chunk comes before the answer, so that an error becomes one.
    first = await while_connected(call.request, _first(chunks))

    async def sent() -> AsyncGenerator[str, None]:
        async with aclosing(chunks):
            yield first
            async for chunk in chunks:
                yield chunk

    kind = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}[form]
    headers = {"Content-Disposition": f'attachment; filename="{call.topic}.{form}"'}
    return StreamingResponse(sent(), media_type=kind, headers=headers)


async def _first(chunks: AsyncGenerator[str, None]) -> str:
    return await anext(chunks, "")


async def _dead_letters(data: ConsoleData, call: Call) -> Any:
    found = await _kafka(data, call)
    topics = await found.with_records()
    kafka = found.brokers.as_json()
    mask = list(data.settings.mask)
    work = data.worker.call("count_dead_letters", kafka=kafka, topics=topics, mask=mask)
    answer = await while_connected(call.request, work)
    every = len(topics) + found.left_out
    left_out = {"topic": None, "looked_at": answer["looked_at"], "topics": every}
    return [*answer["topics"], *([left_out] if answer["looked_at"] < every else [])]


async def _dead_letters_of(data: ConsoleData, call: Call) -> Any:
    work = data.worker.call(
        "dead_letters",
        kafka=(await _kafka(data, call)).brokers.as_json(),
        topic=call.topic,
        parameters=call.query,
        mask=list(data.settings.mask),
        registry=data.settings.registry,
        messages=data.settings.messages,
    )
    return await while_connected(call.request, work)


async def _send(data: ConsoleData, call: Call) -> Any:
    which = await call.body()
    kafka = (await _kafka(data, call)).brokers.as_json()
    arguments = {"kafka": kafka, "topic": call.topic, "which": which, "mask": list(data.settings.mask)}
    try:
        return await data.worker.call("send_letters", **arguments)
    except WorkerError as error:
        if error.kind == "WorkerEnded":
            error.next = "some may have been sent: see the topics that the letters name before you send them again"
        raise


async def _connectors(data: ConsoleData, call: Call) -> Any:
    return await data.listed_connectors()


async def _connector(data: ConsoleData, call: Call) -> Any:
    return await data.connector(call.path["cluster"], call.path["name"])


async def _act(data: ConsoleData, call: Call) -> Any:
    action = call.path["action"]
    if action not in ACTIONS:
        raise NotFound(f"there is no action {action[:100]}", next=f"choose {', '.join(ACTIONS)}")
    return await data.clusters.act(call.path["cluster"], call.path["name"], action)


async def _states(data: ConsoleData, call: Call) -> Any:
    await data.runs.looked.wait()
    found = []
    for name, address in data.state_servers():
        answer = await fetch(address, "/state")
        if answer.status == 200 and isinstance(listed := answer.parsed(address.url), list):
            found += [{**one, "run": name} for one in listed if isinstance(one, dict)]
    if folders := [str(root) for root in data.roots()]:
        for state in await data.worker.call("states", folders=folders):
            found.append({**state, "run": state["name"].split("/")[0]})
    return found


async def _state(data: ConsoleData, call: Call) -> Any:
    await data.runs.looked.wait()
    name, key, limit = call.path["name"], call.query.get("key"), call.query.get("limit") or "100"
    if {".", ".."} & set(name.split("/")):
        # A server of state, or a proxy before it, would take it for a path to another page.
        raise NotFound(f"{name[:100]!r} is not a name of a state", next="see /api/state")
    asked = {"limit": limit} | ({} if key is None else {"key": key})
    problem: PenstockError | None = None
    for _, address in data.state_servers():
        try:
            answer = await fetch(address, f"/state/{quote(name, safe='/')}?{urlencode(asked)}")
        except PenstockError as error:
            # Another one may have the state.
            problem = error
            continue
        found = answer.parsed(address.url)
        if answer.status == 200 and isinstance(found, dict):
            return {**found, "rows": data.mask.value(found.get("rows", []))}
        what = found.get("error") if isinstance(found, dict) else None
        problem = NotFound(str(what or f"HTTP {answer.status}")[:500], where=address.url, next="see /api/state")
    if folders := [str(root) for root in data.roots()]:
        mask = list(data.settings.mask)
        return await data.worker.call("state", folders=folders, name=name, key=key, limit=int(limit), mask=mask)
    raise problem or NotFound(f"there is no state {name[:200]}", next="give --checkpoints DIR or --state URL")


async def _ingest(data: ConsoleData, call: Call) -> Any:
    await data.runs.looked.wait()
    return [
        {
            **(run.status or {}).get("ingest", {}),
            "run": id,
            "url": run.address.url,
            "state": (run.status or {}).get("state", "starting"),
            "reachable": run.reachable,
            "problem": run.problem,
        }
        for id, run in data.of_kind("ingest").items()
    ]


KAFKA = Parameter("kafka", "The Kafka, one of `kafkas` of the overview; by default that of --servers, or the only one.")
PARTITION = Parameter("partition", "Only this partition.", whole=True)
LIMIT = Parameter("limit", "The most records: 500 for a page, 10000 for a download.", whole=True)
FROM = Parameter("from", "latest, earliest, an ISO time, an offset, or partition:offset,partition:offset.")
BEFORE = Parameter("before", "With from=latest: the records before these offsets, written as partition:offset,...")
KEY = Parameter("key", "Only records with this key, as the page shows it.")
FILTER = Parameter("filter", "Only records with this text in the key, the value or a header; case does not matter.")
SEARCH = (KAFKA, PARTITION, FROM, BEFORE, LIMIT, KEY, FILTER)

ROUTES = (
    ApiRoute("/api/overview", "All runs, their graph, and what is wrong, worst first", _overview, "Overview"),
    ApiRoute("/api/events", "The overview as server-sent events, whenever it changed", _events, "events"),
    ApiRoute("/api/pipelines/{id:path}", "A run with the batches of the last 15 minutes", _pipeline, "Run"),
    ApiRoute(
        "/api/history",
        "Charts of a pipeline from Prometheus",
        _history,
        "History",
        (
            Parameter("pipeline", "The name of the pipeline."),
            Parameter("query", "The name of a query of it."),
            Parameter("range", "How far back.", tuple(long_history.RANGES)),
        ),
    ),
    ApiRoute(
        "/api/topics",
        "The topics of a Kafka with their records and rates; a last one without a name says if not all are listed",
        _topics,
        "Topics",
        (KAFKA,),
    ),
    ApiRoute("/api/topics/{topic}/records", "Records of a topic", _records, "Records", SEARCH),
    ApiRoute("/api/topics/{topic}/tail", "New records as server-sent events", _tail, "events", SEARCH),
    ApiRoute(
        "/api/topics/{topic}/download",
        "Records as a file",
        _download,
        "file",
        (*SEARCH, Parameter("as", "The form of the file.", ("ndjson", "csv"))),
    ),
    ApiRoute(
        "/api/dead-letters",
        "The topics that have dead letters; a last one without a name says if not all were looked at",
        _dead_letters,
        "DeadLetterTopics",
        (KAFKA,),
    ),
    ApiRoute(
        "/api/dead-letters/{topic}",
        "The reasons of a topic's newest dead letters, and the letters",
        _dead_letters_of,
        "DeadLetters",
        (KAFKA, Parameter("reason", "Only letters with this reason."), LIMIT),
    ),
    ApiRoute(
        "/api/dead-letters/{topic}/send",
        "Send dead letters again to the topic in their headers; nothing prevents sending them twice",
        _send,
        "Sent",
        (KAFKA,),
        method="POST",
        body="Letters",
    ),
    ApiRoute("/api/connectors", "The connectors of all Connect clusters", _connectors, "Connectors"),
    ApiRoute(
        "/api/connectors/{cluster:int}/{name:path}",
        "A connector with its configuration, without secrets, and its offsets",
        _connector,
        "Connector",
    ),
    ApiRoute(
        "/api/connectors/{cluster:int}/{name:path}/{action}",
        "pause, resume, stop or restart a connector, and wait for the result",
        _act,
        "Acted",
        method="POST",
    ),
    ApiRoute("/api/state", "The states of queries", _states, "States"),
    ApiRoute(
        "/api/state/{name:path}",
        "Rows of a state",
        _state,
        "StateRows",
        (
            Parameter("key", "The key, as a string or as a JSON object of its columns."),
            Parameter("limit", "The most rows (100).", whole=True),
        ),
    ),
    ApiRoute("/api/ingest", "The servers of penstock ingest", _ingest, "Ingest"),
)


def allowed(route: ApiRoute, request: Request, token: str | None) -> None:
    """Raise Refused if this request may not have an answer."""
    if route.method == "GET":
        page_security.require_own_page(request)
    else:
        page_security.require_action(request, token)
