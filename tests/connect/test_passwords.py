"""Who may call a worker's REST API: names and passwords, checked by another project's HTTP client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from connect_memory import memory_worker
from waiting import PATIENCE

from penstock.connect.worker import settings as worker_settings
from penstock.connect.worker.api import application
from penstock.connect.worker.settings import BASIC_AUTH, WorkerSettings
from penstock.errors import PenstockError
from penstock.serve.access.passwords import Passwords, protected
from penstock.serve.rest_server import RestServer, bind

KNOWN = {"ann": "s:e:c ret", "jörg": "ü"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    worker = memory_worker(tmp_path_factory.mktemp("worker"))
    worker.start()
    server = RestServer(protected(application(worker), Passwords(KNOWN)), bind("127.0.0.1", 0))
    yield server.url
    server.close()
    worker.close()


@pytest.mark.parametrize("login", KNOWN.items(), ids=list(KNOWN))
def test_who_knows_a_password_may_call(url: str, login: tuple[str, str]) -> None:
    given = base64.b64encode(":".join(login).encode()).decode()
    answer = requests.get(f"{url}/connectors", headers={"Authorization": f"Basic {given}"}, timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ",
        "Basic !!!",
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b"ann:").decode(),
        "Basic " + base64.b64encode(b"ann:s:e:c").decode(),
        "Basic " + base64.b64encode(b"bob:s:e:c ret").decode(),
        "Bearer " + base64.b64encode(b"ann:s:e:c ret").decode(),
        "Basic " + base64.b64encode(b"ann:s:e:c ret" + b" " * 5000).decode(),
    ],
)
@pytest.mark.parametrize("path", ["/", "/connectors", "/nothing"])
def test_others_learn_nothing(url: str, header: str, path: str) -> None:
    headers = {"Authorization": header} if header else {}
    answer = requests.post(f"{url}{path}", json={"name": "a", "config": {}}, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error_code"]) == (401, 401)
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")


def settings(folder: Path, *lines: str) -> WorkerSettings:
    (folder / "worker.properties").write_text("\n".join(("bootstrap.servers=localhost:9", *lines)))
    return worker_settings.read(folder / "worker.properties", None, None)


def test_a_worker_s_file_names_the_file_of_passwords(tmp_path: Path) -> None:
    assert settings(tmp_path).passwords is None
    (tmp_path / "known").write_text("ann=secret\n")
    for lines in ((), (f"rest.extension.classes={BASIC_AUTH}",)):
        made = settings(tmp_path, f"penstock.rest.credentials.file={tmp_path}/known", *lines).passwords
        assert made and made.allows("basic " + base64.b64encode(b"ann:secret").decode())


@pytest.mark.parametrize(
    ("lines", "known", "why"),
    [
        (["rest.extension.classes=org.example.Guard"], None, "rest.extension.classes cannot be 'org.example.Guard'"),
        ([f"rest.extension.classes={BASIC_AUTH}"], None, "set penstock.rest.credentials.file to a properties file"),
        (["penstock.rest.credentials.file={folder}/none"], None, "there is no file .*none"),
        (["penstock.rest.credentials.file={folder}/known"], "", "has no names"),
        (["penstock.rest.credentials.file={folder}/known"], "ann=\n", "without a password"),
        (["penstock.rest.credentials.file={folder}/known"], "a\\:b=c\n", "a name with a colon"),
        (["penstock.rest.credentials.file={folder}/known"], "a=\\u00g\n", "known cannot be read"),
        (["penstock.rest.credentials.file={folder}/known"], "a=b\n" * 300_000, "known cannot be read"),
    ],
)
def test_wrong_settings_stop_the_start(tmp_path: Path, lines: list[str], known: str | None, why: str) -> None:
    if known is not None:
        (tmp_path / "known").write_text(known)
    with pytest.raises(PenstockError, match=why) as raised:
        settings(tmp_path, *(line.format(folder=tmp_path) for line in lines))
    assert "Next: " in str(raised.value) and "worker.properties" in str(raised.value)
