"""The pages of commands that serve HTTP themselves, with a server of their own and with `penstock state serve`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from waiting import PATIENCE

from penstock import __version__
from penstock.errors import PenstockError
from penstock.serve.rest_errors import error_response
from penstock.serve.rest_server import RestServer, bind
from penstock.watch.program import Program, nearest, reached_at
from penstock.watch.served_app import ERRORS, observed


class Away(PenstockError):
    retriable = True


async def _row(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "away":
        return error_response(Away("the database does not answer", where="10.0.0.1:9042", next="check it"))
    if name == "odd":
        return PlainTextResponse("<b>no JSON", 502)
    if name == "broken":
        raise ValueError("a fault <script>")
    return JSONResponse({"name": name})


@contextmanager
def serving(problems: list[str], *, is_open: bool = False) -> Iterator[str]:
    app = Starlette(routes=[Route("/rows/{name:path}", _row), Route("/rows", _row, methods=["POST"])])
    program = Program("state", "state", "penstock state serve")
    with bind("127.0.0.1", 0) as bound:
        server = RestServer(observed(app, program, lambda: problems, is_open=is_open), bound)
        try:
            yield server.url
        finally:
            server.close()


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """The values by name and sorted label values."""
    text = requests.get(f"{url}/metrics", timeout=PATIENCE).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name, *sorted(one.labels.values())): one.value for one in samples}


def test_requests_are_counted_by_the_template_of_their_path() -> None:
    with serving([]) as url:
        for path in ("rows/a", "rows/b/c", "rows/away", "wp-login.php", "rows?x=1"):
            requests.get(f"{url}/{path}", timeout=PATIENCE)
        found = scrape(url)
        text = requests.get(f"{url}/metrics", timeout=PATIENCE)
        checked = promtool("check", "metrics", given=text.text)
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    counted = {key[1:]: value for key, value in found.items() if key[0] == "penstock_http_requests_total"}
    assert counted == {
        ("/rows/{name:path}", "200"): 2,
        ("/rows/{name:path}", "503"): 1,
        ("/rows", "405"): 1,
        ("404", "other"): 1,
    }
    assert found["penstock_http_request_duration_seconds_count", "/rows/{name:path}"] == 3
    assert found["penstock_http_request_duration_seconds_bucket", "+Inf", "/rows/{name:path}"] == 3
    assert found["penstock_build_info", __version__] == 1
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_status_has_the_last_errors_with_what_to_do() -> None:
    with serving([]) as url:
        for path in ("away", "odd", "broken"):
            requests.get(f"{url}/rows/{path}", timeout=PATIENCE)
        status = requests.get(f"{url}/status", timeout=PATIENCE).json()
        for _ in range(ERRORS):
            requests.get(f"{url}/rows/odd", timeout=PATIENCE)
        assert len(requests.get(f"{url}/status", timeout=PATIENCE).json()["errors"]) == ERRORS
    assert (status["kind"], status["name"], status["state"]) == ("state", "state", "running")
    assert (status["pid"], status["command"]) == (os.getpid(), "penstock state serve")
    away, odd, broken = status["errors"]
    assert (away["what"], away["where"], away["next"]) == ("the database does not answer", "10.0.0.1:9042", "check it")
    assert (odd["what"], odd["where"]) == ("<b>no JSON", "/rows/{name:path}")
    assert broken["what"] == "ValueError: a fault <script>"
    assert "in _row" in broken["trace"]
    assert {"path": "/rows/{name:path}", "status": 500, "count": 1} in status["requests"]


def test_an_open_server_tells_neither_errors_nor_its_command() -> None:
    with serving([], is_open=True) as url:
        requests.get(f"{url}/rows/away", timeout=PATIENCE)
        status = requests.get(f"{url}/status", timeout=PATIENCE)
    assert status.json()["errors"] == []
    assert status.json()["command"] == ""
    assert "10.0.0.1" not in status.text


def test_it_is_ready_when_nothing_keeps_it_from_its_work() -> None:
    problems: list[str] = []
    with serving(problems) as url:
        ready = requests.get(f"{url}/ready", timeout=PATIENCE)
        assert (ready.status_code, ready.json()) == (200, {"status": "ok", "problems": []})
        problems.append("the database does not answer")
        ready = requests.get(f"{url}/ready", timeout=PATIENCE)
        assert (ready.status_code, ready.json()["problems"]) == (503, problems)
        assert requests.get(f"{url}/health", timeout=PATIENCE).json() == {"status": "ok"}
        for path in ("metrics", "health", "ready", "status"):
            assert requests.post(f"{url}/{path}", timeout=PATIENCE).status_code == 405
            assert requests.get(f"{url}/{path}", headers={"host": "evil.example"}, timeout=PATIENCE).status_code == 421


@pytest.mark.parametrize(("host", "near"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1")])
def test_a_server_at_all_addresses_is_reached_at_loopback(host: str, near: str) -> None:
    assert nearest(host) == near


def test_the_url_of_a_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        assert reached_at(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_state_serve_tells_its_status_and_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    command = [sys.executable, "-m", "penstock", "state", "serve", "--port", "0", "--checkpoints", "checkpoints"]
    env = {**os.environ, "PENSTOCK_RUNS": str(tmp_path / "runs")}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().split()[-1].removesuffix("/state")
        try:
            assert requests.get(f"{url}/state", timeout=PATIENCE).json() == []
            status: dict[str, Any] = requests.get(f"{url}/status", timeout=PATIENCE).json()
            assert (status["kind"], status["pid"]) == ("state", process.pid)
            assert status["requests"] == [{"path": "/state", "status": 200, "count": 1}]
            (file,) = (tmp_path / "runs").iterdir()
            assert f'"url": "{url}"' in file.read_text()
            assert f'"checkpoint": "{tmp_path}/checkpoints"' in file.read_text()
            (tmp_path / "checkpoints").rmdir()
            ready = requests.get(f"{url}/ready", timeout=PATIENCE)
            assert ready.status_code == 503
            assert "there is no folder of checkpoints" in ready.json()["problems"][0]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    assert list((tmp_path / "runs").iterdir()) == []
