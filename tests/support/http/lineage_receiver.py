"""A receiver of OpenLineage events, and OpenLineage's schemas of them."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs

SCHEMAS = Path(__file__).parents[2] / "data/openlineage"
FACETS = {
    "schema": "SchemaDatasetFacet",
    "errorMessage": "ErrorMessageRunFacet",
    "processing_engine": "ProcessingEngineRunFacet",
    "jobType": "JobTypeJobFacet",
}


def require_valid(event: dict[str, Any]) -> None:
    """Check an event, and each facet in it against the schema that it names."""
    schemas = [json.loads(file.read_text()) for file in SCHEMAS.glob("*.json")]
    registry = jsonschema_rs.Registry([(schema["$id"], schema) for schema in schemas])

    def check(reference: str, value: Any) -> None:
        jsonschema_rs.validator_for({"$ref": reference}, registry=registry, validate_formats=True).validate(value)

    check(event["schemaURL"], event)
    facets = [*event["run"]["facets"].items(), *event["job"]["facets"].items()]
    for one in (*event["inputs"], *event["outputs"]):
        facets += one["facets"].items()
    for name, facet in facets:
        assert facet["_schemaURL"].endswith(f"{FACETS[name]}.json#/$defs/{FACETS[name]}")
        check(facet["_schemaURL"], facet)


@dataclass
class Receiver:
    """A server that keeps what is sent, and answers with `status`; `slow` is how long that takes, in seconds.

    It resets the first `resets` connections before it reads from them.
    """

    url: str = ""
    status: int = 200
    slow: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    tries: int = 0
    resets: int = 0

    def types(self, job: str = "") -> list[str]:
        return [one["eventType"] for one in self.events if job in ("", one["job"]["name"])]


@contextmanager
def receiving() -> Iterator[Receiver]:
    found, over = Receiver(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.tries += 1
            over.wait(found.slow)
            status = found.status
            if status < 300:
                found.events.append(json.loads(body))
                found.paths.append(self.path)
                found.keys.append(self.headers["authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"because\nof this")

        def log_message(self, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            if reset := found.resets > 0:
                found.resets -= 1
                # Without a wait for what was not sent, a close is a reset.
                request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return not reset

    server = Server(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def names(sets: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The namespaces and names of data sets."""
    return {(one["namespace"], one["name"]) for one in sets}
