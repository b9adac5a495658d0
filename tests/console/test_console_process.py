"""`penstock console` as a process: its start and memory, the runs that it finds, and its stream of changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from console_process import ConsoleProcess, console, http_server, status
from waiting import PATIENCE, patience, until

from penstock.watch.run_files import RunFile

MEMORY = 100 << 20
"""Bytes."""


def run_of(shown: Any, name: str) -> dict[str, Any]:
    (found,) = [run for run in shown["runs"] if run["name"] == name]
    return dict(found)


def run_file(folder: Path, process: psutil.Process, url: str, name: str, checkpoint: str | None = None) -> None:
    """A run file as the process itself would write it."""
    made = RunFile(
        "run", name, url, f"penstock run shop.py:{name}", checkpoint, pid=process.pid, created=process.create_time()
    )
    (folder / "runs").mkdir(exist_ok=True)
    (folder / f"runs/{process.pid}.json").write_text(json.dumps(asdict(made)))


def test_it_starts_fast_and_takes_little_memory(tmp_path: Path) -> None:
    begun = time.monotonic()
    with console(tmp_path) as made:
        made.get("/api/overview")
        took = time.monotonic() - begun
        memory = psutil.Process(made.process.pid).memory_info().rss
        print(f"first answer after {took:.2f} s, {memory / 1e6:.0f} MB resident")
        loaded = _modules_of_start()
    assert took < patience(20)
    assert memory < MEMORY / 2
    assert not loaded & {"pyspark", "pyarrow", "numba", "pandas", "numpy"}


def _modules_of_start() -> set[str]:
    code = "import sys, penstock.console.server; print(*{name.partition('.')[0] for name in sys.modules})"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_also_while_a_page_is_open(tmp_path: Path, number: signal.Signals) -> None:
    with console(tmp_path) as made, requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE) as page:
        lines = page.iter_lines()
        assert next(lines) == b"retry: 1000"
        begun = time.monotonic()
        made.process.send_signal(number)
        assert made.process.wait(PATIENCE) == 0
        assert time.monotonic() - begun < patience(20)
    assert made.errors.read_text() == ""


def test_a_port_that_is_taken_is_reported(tmp_path: Path) -> None:
    with http_server({}) as other:
        port = other.url.rpartition(":")[2]
        command = [sys.executable, "-m", "penstock", "console", "--listen", f"127.0.0.1:{port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--listen", "8085"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:x"], "is not a port"),
        (["--target", "ftp://x"], "'ftp://x' is not the address of a server"),
        (["--connect", "http://user:secret@"], "is not the address of a server"),
        (["--servers", "kafka"], "is not a list of host:port"),
        (["--prometheus", "http://h:99999"], "is not the address of a server"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], error: str) -> None:
    command = [sys.executable, "-m", "penstock", "console", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert ended.returncode in (1, 2)
    assert error in ended.stderr and "secret" not in ended.stderr and "Traceback" not in ended.stderr


def test_other_addresses_than_loopback_are_warned_of(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "console", "--listen", "0.0.0.0:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None and process.stdout.readline().startswith("console at http://0.0.0.0:")
    process.terminate()
    assert "without authentication" in process.communicate()[1]


def test_a_target_is_shown_with_its_rates_and_history(tmp_path: Path) -> None:
    with http_server({"GET /status": status()}) as target, console(tmp_path, "--target", target.url) as made:
        shown = made.get("/api/overview")
        assert run_of(shown, "orders")["reachable"] and "history" not in run_of(shown, "orders")["queries"][0]
        assert shown["targets"] == [{"id": "orders", "url": target.url, "reachable": True, "problem": ""}]
        assert shown["problems"] == []
        whole = made.get("/api/pipelines/orders")
        assert whole["queries"][0]["history"] == status()["queries"][0]["history"]
        assert "there is no pipeline none" in made.get("/api/pipelines/none", 404)["error"]


def test_two_runs_of_one_name_are_told_apart_by_their_address(tmp_path: Path) -> None:
    pages = {"GET /status": status()}
    with ExitStack() as stack:
        one, two = (stack.enter_context(http_server(pages)).url for _ in range(2))
        made = stack.enter_context(console(tmp_path, "--target", one, "--target", two))
        assert {run["id"] for run in made.get("/api/overview")["runs"]} == {f"orders@{one}", f"orders@{two}"}
        assert made.get(f"/api/pipelines/orders@{one}")["url"] == one


HOSTILE = {
    "not JSON": b"<html>",
    "not UTF-8": b"\xff\xfe",
    "too deep": b"[" * 500_000,
    "too large": b'{"kind": "run", "a": "' + b"x" * (9 << 20),
    "no status": {"kind": "toaster"},
    "another page": (500, {"message": "broken"}),
    "elsewhere": (302, b""),
}


def test_targets_with_wrong_answers_are_problems_and_no_more(tmp_path: Path) -> None:
    with ExitStack() as stack:
        wrong = {name: stack.enter_context(http_server({"GET /status": page})).url for name, page in HOSTILE.items()}
        good = stack.enter_context(http_server({"GET /status": status("good")})).url
        options = [option for url in (*wrong.values(), good) for option in ("--target", url)]
        made = stack.enter_context(console(tmp_path, *options))
        shown = until(lambda: _with_problems(made, len(wrong)), "problems")
        assert run_of(shown, "good")["reachable"]
        assert all(one["severity"] == "failed" and one["next"] for one in shown["problems"])
        why = {
            name: next(one["what"] for one in shown["problems"] if one["where"] == url) for name, url in wrong.items()
        }
        assert "more than 8388608 bytes" in why["too large"]
        assert "not JSON" in why["not JSON"] and "not JSON" in why["too deep"] and "not JSON" in why["not UTF-8"]
        assert "no kind, name and state" in why["no status"]
        assert "HTTP 500" in why["another page"] and "HTTP 302" in why["elsewhere"]
        assert psutil.Process(made.process.pid).memory_info().rss < MEMORY
    assert made.errors.read_text() == ""


def _with_problems(made: ConsoleProcess, count: int) -> Any:
    shown = made.get("/api/overview")
    return shown if len(shown["problems"]) == count else None


@pytest.mark.slow
def test_a_target_that_hangs_or_drips_does_not_hold_up_the_others(tmp_path: Path) -> None:
    ended = threading.Event()

    def hangs() -> bytes:
        ended.wait(PATIENCE)
        return b"{}"

    with http_server({"GET /status": hangs}) as slow, http_server({"GET /status": status("good")}) as good:
        try:
            with console(tmp_path, "--target", slow.url, "--target", good.url) as made:
                for _ in range(4):
                    good.asked.get(timeout=PATIENCE)
                shown = until(lambda: _with_problems(made, 1), "problem")
                assert run_of(shown, "good")["reachable"]
                assert "no answer within" in shown["problems"][0]["what"]
        finally:
            ended.set()


def _events(page: requests.Response) -> Iterator[tuple[str, Any]]:
    """The ids and the data of a stream's events."""
    id = ""
    for line in page.iter_lines():
        if line.startswith(b"id: "):
            id = line[4:].decode()
        elif line.startswith(b"data: "):
            yield id, json.loads(line[6:])


def test_a_run_that_is_killed_is_seen_within_seconds(tmp_path: Path) -> None:
    code = """
import sys
from console_process import http_server, status
with http_server({"GET /status": status()}) as made:
    print(made.url, flush=True)
    sys.stdin.read()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert run.stdin is not None and run.stdout is not None
    with run.stdin, run.stdout:
        run_file(tmp_path, psutil.Process(run.pid), run.stdout.readline().strip(), "orders")
        with console(tmp_path) as made:
            until(lambda: run_of(made.get("/api/overview"), "orders")["reachable"], "answer of the run")
            with requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE) as page:
                events = _events(page)
                assert run_of(next(events)[1], "orders")["state"] == "running"
                run.kill()
                killed = time.monotonic()
                run.wait()
                shown = next(data for _, data in events if run_of(data, "orders")["state"] == "stopped")
                assert time.monotonic() - killed < patience(10)
                assert not run_of(shown, "orders")["reachable"]
                (problem,) = shown["problems"]
                assert (problem["severity"], problem["what"]) == ("stopped", "orders: its process has ended")
                assert problem["next"] == "start it again: penstock run shop.py:orders"
            # Another process of the pipeline takes its place.
            with http_server({"GET /status": status()}) as again:
                run_file(tmp_path, psutil.Process(os.getpid()), again.url, "orders")
                until(lambda: run_of(made.get("/api/overview"), "orders")["reachable"], "answer of the next run")


@pytest.mark.slow
def test_a_stream_sends_changes_only_and_goes_on_where_a_page_was(tmp_path: Path) -> None:
    present = status()
    with http_server({"GET /status": lambda: present}) as target, console(tmp_path, "--target", target.url) as made:
        until(lambda: run_of(made.get("/api/overview"), "orders")["reachable"], "answer of the run")
        with requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE) as page:
            events = _events(page)
            # Rates are known from the second status on.
            first = next(id for id, data in events if "rate" in data["graph"]["edges"][0])
            # The time of the status is no change.
            present = status(now="2026-11-25T11:00:00.000Z")
            for _ in range(5):
                target.asked.get(timeout=PATIENCE)
            present = status(state="waiting", waits_for="Kafka")
            second, data = next(events)
            assert run_of(data, "orders")["state"] == "waiting" and second != first
            assert data["problems"][0]["what"] == "orders waits for Kafka"
        with requests.get(
            f"{made.url}/api/events", stream=True, timeout=PATIENCE, headers={"Last-Event-ID": second}
        ) as page:
            present = status(state="starting")
            third, data = next(_events(page))
            assert run_of(data, "orders")["state"] == "starting" and third not in (first, second)


def test_streams_are_bounded(tmp_path: Path) -> None:
    with console(tmp_path) as made, ExitStack() as stack:

        def opened() -> Iterator[bytes]:
            page = stack.enter_context(requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE))
            # Kept by the caller: without it, requests would close the connection.
            lines: Iterator[bytes] = page.iter_lines()
            return lines

        pages = [opened() for _ in range(32)]
        assert [next(page) for page in pages] == [b"retry: 1000"] * 32
        told = stack.enter_context(requests.get(f"{made.url}/api/events", stream=True, timeout=PATIENCE))
        assert told.status_code == 503 and "32 pages are connected" in told.json()["error"]
        pages.pop().close()  # type: ignore[attr-defined]
        until(lambda: next(opened()) == b"retry: 1000", "room for another page")
