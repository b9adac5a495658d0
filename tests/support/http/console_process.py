"""A `penstock console` as a process of its own, and small HTTP servers that answer as other commands do."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import requests
from waiting import PATIENCE

from penstock.watch.run_files import RunFile


@dataclass(frozen=True)
class ConsoleProcess:
    """A running console; `token` is "" if it is read-only."""

    url: str
    token: str
    process: subprocess.Popen[str]
    errors: Path

    def get(self, path: str, status: int = 200) -> Any:
        answer = requests.get(self.url + path, timeout=PATIENCE)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"X-Penstock-Token": self.token}
        answer = requests.post(self.url + path, json={} if body is None else body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == status, answer.text
        return answer.json()


@contextmanager
def console(folder: Path, *options: str) -> Iterator[ConsoleProcess]:
    """A console that finds the run files of `folder`, at a free port; its errors go to a file there."""
    environment = os.environ | {"PENSTOCK_RUNS": str(folder / "runs")}
    command = [sys.executable, "-m", "penstock", "console", "--listen", "127.0.0.1:0", *options]
    errors = folder / "console.log"
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=folder)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("console at http://"), errors.read_text()
        url, _, token = line.split()[-1].partition("/#token=")
        yield ConsoleProcess(url, token, process, errors)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class Answers:
    """What a server answers by method and path, and the requests that it got; a function is called for its answer.

    An answer is bytes, or something that becomes JSON.
    """

    pages: dict[str, Any] = field(default_factory=dict)
    asked: queue.Queue[tuple[str, Any]] = field(default_factory=queue.Queue)
    url: str = ""


@contextmanager
def http_server(pages: Mapping[str, Any]) -> Iterator[Answers]:
    """A server with pages such as {"GET /status": {...}}; a path is looked up with its query, then without it.

    A pair is an HTTP status and a body. What is not there is answered with 404.
    """
    answers = Answers(dict(pages))

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answers.asked.put((f"{self.command} {self.path}", body))
            path = self.path if f"{self.command} {self.path}" in answers.pages else self.path.partition("?")[0]
            found = answers.pages.get(f"{self.command} {path}", (404, {"message": "not here"}))
            found = found() if callable(found) else found
            status, told = found if isinstance(found, tuple) else (200, found)
            data = told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A caller that goes before its answer is no error of the test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status(name: str = "orders", **more: Any) -> dict[str, Any]:
    """A `/status` of a pipeline with one query, from a topic to a topic."""
    nodes = [
        {"id": "topic:in", "kind": "topic", "name": "in", "system": "kafka", "address": None},
        {"id": f"query:{name}", "kind": "query", "name": name, "system": "penstock", "address": None},
        {"id": "topic:out", "kind": "topic", "name": "out", "system": "kafka", "address": None},
    ]
    edges = [
        {"source": "topic:in", "target": f"query:{name}"},
        {"source": f"query:{name}", "target": "topic:out"},
    ]
    query = {
        "name": name,
        "pipeline": name,
        "node": f"query:{name}",
        "state": "running",
        "target_seconds": 60.0,
        "batch": 3,
        "sources": [{"name": "topic in", "node": "topic:in", "lag_records": 0, "lag_seconds": 0.0, "rows_total": 10}],
        "sinks": [{"name": "topic out", "node": "topic:out", "rows_total": 10}],
        "history": [{"at": "2026-11-25T10:00:00.000Z", "seconds": 0.4, "rows": 20}],
    }
    return {
        "version": "1",
        "kind": "run",
        "name": name,
        "pid": 1,
        "now": "2026-11-25T10:00:00.000Z",
        "command": f"penstock run shop.py:{name}",
        "state": "running",
        "graph": {"nodes": nodes, "edges": edges},
        "queries": [query],
        "errors": [],
    } | more


@contextmanager
def run_at(folder: Path, process: psutil.Process, name: str, kafka: str, topic: str) -> Iterator[None]:
    """A run of this name, found by the run file of a process in this folder, that reads a topic of this Kafka."""
    told = status(name)
    told["graph"]["nodes"][0] |= {"id": f"topic:{topic}", "name": topic, "address": kafka}
    told["graph"]["nodes"][2]["address"] = kafka
    told["graph"]["edges"][0]["source"] = told["queries"][0]["sources"][0]["node"] = f"topic:{topic}"
    with http_server({"GET /status": told}) as server:
        started = process.create_time()
        file = RunFile("run", name, server.url, "penstock run", None, None, str(folder), process.pid, started)
        folder.mkdir(exist_ok=True)
        (folder / f"{process.pid}.json").write_text(json.dumps(asdict(file)))
        yield
