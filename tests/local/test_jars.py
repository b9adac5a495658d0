"""Jars are complete or missing, from a server that also cuts, corrupts and refuses."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.local import jars
from penstock.local.jars import Artifact

CONTENT = bytes(range(256)) * 400


@dataclass
class Repository:
    """A Maven repository on the loopback address, and its requests; each request uses up one of `faults`."""

    root: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, content: bytes = CONTENT) -> Artifact:
        path = f"org/example/{name}/1.0/{name}-1.0.jar"
        self.files[path] = content
        return Artifact(path, hashlib.sha256(content).hexdigest(), len(content))

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, requested = handler.path.lstrip("/"), handler.headers.get("Range", "")
        self.requests.append((path, requested))
        fault = self.faults.pop(0) if self.faults else ""
        content = self.files.get(path)
        if fault.isdecimal() or content is None:
            handler.send_error(int(fault) if fault else 404)
            return
        start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and fault != "no ranges" else 0
        body = content[start:]
        handler.send_response(206 if start else 200)
        if fault != "endless":
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if fault == "cut":
            body = body[: len(body) // 2]
        if fault == "endless":
            while True:
                handler.wfile.write(bytes(1 << 20))
        handler.wfile.write(bytes(len(body)) if fault == "corrupt" else body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    served = Repository()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}).start()
        served.root = f"http://127.0.0.1:{http.server_port}"
        monkeypatch.setenv("PENSTOCK_MIRROR", served.root)
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("PENSTOCK_OFFLINE", raising=False)
        monkeypatch.setattr(jars, "PAUSES", (0.0, 0.0))
        yield served
        http.shutdown()


def test_fetches_from_the_mirror_into_the_cache_and_asks_only_once(server: Repository) -> None:
    wanted = [server.add(name) for name in ("a", "b", "c")]
    jars.fetch_all(wanted)
    assert [artifact.file.read_bytes() for artifact in wanted] == [CONTENT] * 3
    assert all(artifact.cached for artifact in wanted)
    jars.fetch_all(wanted)
    assert len(server.requests) == 3


def test_a_cut_download_goes_on_where_it_ended(server: Repository) -> None:
    wanted = server.add("a")
    server.faults = ["cut"]
    jars.fetch_all([wanted])
    assert [requested for _, requested in server.requests] == ["", f"bytes={len(CONTENT) // 2}-"]
    assert wanted.file.read_bytes() == CONTENT


def test_a_download_of_an_earlier_run_goes_on(server: Repository) -> None:
    wanted = server.add("a")
    wanted.file.parent.mkdir(parents=True)
    wanted.file.with_name("a-1.0.jar.part").write_bytes(CONTENT[:1000])
    jars.fetch_all([wanted])
    assert server.requests == [(wanted.path, "bytes=1000-")]
    assert wanted.file.read_bytes() == CONTENT


def test_a_server_that_cannot_resume_sends_all_again(server: Repository) -> None:
    wanted = server.add("a")
    server.faults = ["cut", "no ranges"]
    jars.fetch_all([wanted])
    assert wanted.file.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["503", "429", "corrupt"])
def test_a_passing_fault_is_tried_again(server: Repository, fault: str) -> None:
    wanted = server.add("a")
    server.faults = [fault]
    jars.fetch_all([wanted])
    assert wanted.file.read_bytes() == CONTENT


def test_wrong_content_never_gets_the_final_name(server: Repository) -> None:
    wanted = server.add("a")
    server.faults = ["corrupt"] * 3
    with pytest.raises(PenstockError, match=r"a-1\.0\.jar: its SHA-256 is not the one in the lock file"):
        jars.fetch_all([wanted])
    assert not wanted.file.exists()


def test_a_mirror_that_does_not_end_fills_no_disk(server: Repository) -> None:
    wanted = server.add("a")
    server.faults = ["endless"] * 3
    with pytest.raises(
        PenstockError, match=rf"a-1\.0\.jar: it has more than the {len(CONTENT)} bytes of the lock file"
    ):
        jars.fetch_all([wanted])
    assert not wanted.file.exists() and not wanted.file.with_name("a-1.0.jar.part").stat().st_size


def test_a_missing_artifact_is_named_with_its_source_and_what_to_set(server: Repository) -> None:
    wanted = server.add("a")
    server.files.clear()
    with pytest.raises(PenstockError) as caught:
        jars.fetch_all([wanted])
    assert str(caught.value) == (
        f"Cannot fetch {wanted.path}: HTTP 404 (from {server.root}/). Next: set PENSTOCK_MIRROR to a Maven repository "
        "you can reach, or PENSTOCK_OFFLINE to a folder with the jars"
    )
    assert len(server.requests) == 1


def test_an_unreachable_repository_is_named(server: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = server.add("a")
    monkeypatch.setenv("PENSTOCK_MIRROR", "http://127.0.0.1:1/maven")
    with pytest.raises(PenstockError, match=r"Connection refused \(from http://127\.0\.0\.1:1/maven/\)"):
        jars.fetch_all([wanted])


@pytest.mark.parametrize("nested", [True, False])
def test_an_offline_folder_may_be_a_repository_or_flat(
    server: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    wanted = server.add("a")
    offline = tmp_path / "offline"
    file = offline / wanted.path if nested else offline / "a-1.0.jar"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    monkeypatch.setenv("PENSTOCK_OFFLINE", str(offline))
    jars.fetch_all([wanted])
    assert wanted.file.read_bytes() == CONTENT
    assert not server.requests


def test_an_offline_folder_without_the_jar_never_asks_the_network(
    server: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OFFLINE", str(tmp_path))
    with pytest.raises(PenstockError, match=r"No such file or directory \(PENSTOCK_OFFLINE="):
        jars.fetch_all([server.add("a")])
    assert not server.requests


def test_two_processes_fetch_each_jar_once(server: Repository) -> None:
    wanted = [server.add(f"jar{number}") for number in range(30)]
    code = f"from penstock.local.jars import Artifact, fetch_all; fetch_all({wanted!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert sorted(path for path, _ in server.requests) == sorted(artifact.path for artifact in wanted)
    assert all(artifact.file.read_bytes() == CONTENT for artifact in wanted)


def test_too_small_a_disk_is_seen_before_anything_is_fetched(
    server: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(PenstockError, match="No disk space: 0 MB of jars do not fit"):
        jars.fetch_all([server.add("a")])
    assert not server.requests


@pytest.mark.parametrize("name", ["kafka", "cassandra", "spark", "compiler", "registry"])
def test_lock_files_name_each_jar_once(name: str) -> None:
    listed = jars.artifacts(name)
    assert listed
    assert len({artifact.path for artifact in listed}) == len(listed)
    assert all(len(artifact.sha256) == 64 and artifact.size > 0 for artifact in listed)


def test_the_repository_is_the_one_that_spark_resolves_from() -> None:
    root = jars.default_root()
    assert root.startswith("https://")
    assert root.endswith("/")


def test_without_sparks_jars_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match="Next: set PENSTOCK_MIRROR"):
        jars.default_root()
