"""The client of the schema registry against a real one."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from registry_proxy import registry_proxy
from secure_kafka import certificate

from penstock import kafka
from penstock.codec import registry as client
from penstock.codec.registry import RegistryUnavailable
from penstock.errors import PenstockError

LOGIN = "ann:s=cr,ét@:/"


def avro(*fields: str) -> str:
    """A record of required ints."""
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": name, "type": "int"} for name in fields]})


@pytest.fixture
def subject() -> str:
    return f"{uuid.uuid4()}/with a slash-value"


def test_a_schema_is_registered_once_and_its_id_kept(registry: str, subject: str) -> None:
    with registry_proxy(registry) as proxy:
        ids = {kafka.Registry(proxy.url).id(subject, avro("a"), "AVRO") for _ in range(3)}
        assert len(proxy.asked) == 1
    with SchemaRegistryClient({"url": registry}) as peer:
        assert ids == {peer.lookup_schema(subject, Schema(avro("a"), "AVRO")).schema_id}


@contextmanager
def redirecting(to: str) -> Iterator[tuple[str, list[str]]]:
    """A registry that sends each caller to another place; yields its URL, and the logins that it was given."""
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(self.headers["Authorization"] or "")
            self.send_response(307)
            self.send_header("Location", to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", given
        server.shutdown()
        thread.join()


def test_a_redirect_does_not_take_the_login_to_another_host(registry: str, subject: str) -> None:
    with registry_proxy(registry) as proxy, redirecting(proxy.url) as (url, given):
        said = rf"redirects to {proxy.url}, which does not get its login.*{url}.*Next"
        with pytest.raises(PenstockError, match=said):
            kafka.Registry(url, user="ann", password="hush").versions(subject)
        assert given == ["Basic YW5uOmh1c2g="] and not proxy.asked
        # Without a login there is nothing to keep.
        assert kafka.Registry(url).versions(subject) == [] and len(proxy.asked) == 1


def test_another_schema_is_another_version_of_the_subject(registry: str, subject: str) -> None:
    ours = kafka.Registry(registry)
    assert ours.versions(subject) == []
    assert ours.id(subject, avro("a"), "AVRO") != ours.id(subject, avro("a", "b"), "AVRO")
    assert ours.versions(subject) == [1, 2]


def test_an_incompatible_schema_is_refused_with_the_reason(registry: str, subject: str) -> None:
    ours = kafka.Registry(registry)
    ours.id(subject, avro("a"), "AVRO")
    ours.set_compatibility("BACKWARD", subject)
    assert ours.compatible(subject, avro(), "AVRO") and not ours.compatible(subject, avro("a", "b"), "AVRO")
    said = rf"incompatible with earlier versions: .*b at /fields/1.* \(subject {subject} at {registry}\)"
    with pytest.raises(PenstockError, match=said) as caught:
        ours.id(subject, avro("a", "b"), "AVRO")
    assert not caught.value.retriable and "compatibility level" in caught.value.next
    assert ours.versions(subject) == [1]
    ours.set_compatibility("NONE", subject)
    assert ours.id(subject, avro("a", "b"), "AVRO")


def test_a_new_subject_fits_any_schema(registry: str, subject: str) -> None:
    assert kafka.Registry(registry).compatible(subject, avro("a"), "AVRO")


def test_a_faulty_schema_is_refused(registry: str, subject: str) -> None:
    with pytest.raises(PenstockError, match=r"(?i)the schema registry refuses: .*HTTP 422.*subject"):
        kafka.Registry(registry).id(subject, '{"type": "nonsense"}', "AVRO")


def test_without_register_only_known_schemas_pass(registry: str, subject: str) -> None:
    careful = kafka.Registry(registry, register=False)
    with pytest.raises(PenstockError, match=r"not registered: .*register=True\. It is \{"):
        careful.id(subject, avro("a"), "AVRO")
    known = kafka.Registry(registry).id(subject, avro("a"), "AVRO")
    assert careful.id(subject, avro("a"), "AVRO") == known
    with pytest.raises(PenstockError, match="not registered"):
        careful.id(subject, avro("a", "b"), "AVRO")


def test_a_registry_that_is_down_is_named_and_worth_another_try(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.01,))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RegistryUnavailable, match=rf"does not answer: .*refused.*\({url}\)") as caught:
        kafka.Registry(url).id(subject, avro("a"), "AVRO")
    assert caught.value.retriable


def test_of_several_addresses_the_next_one_answers(registry: str, subject: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        down = f"http://ann:pw@127.0.0.1:{server.getsockname()[1]}"
    both = kafka.Registry(f"{down}, {registry}/")
    assert (both.user, "@" in both.url) == ("ann", False)
    assert both.id(subject, avro("a"), "AVRO") == kafka.Registry(registry).id(subject, avro("a"), "AVRO")
    with pytest.raises(PenstockError, match="'localhost' is not the address of a schema registry"):
        kafka.Registry(f"{registry},localhost")


@pytest.mark.parametrize("cut", [False, True])
def test_passing_faults_are_tried_again(
    registry: str, subject: str, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.01, 0.01))
    with registry_proxy(registry) as proxy:
        ours, proxy.cut = kafka.Registry(proxy.url), cut
        proxy.failures = 2
        assert ours.id(subject, avro("a"), "AVRO")
        assert len(proxy.asked) == 3
        proxy.failures = 3
        with pytest.raises(RegistryUnavailable, match="cannot answer now: .*503" if not cut else "does not answer"):
            ours.versions(subject)


def test_tls_and_login(registry: str, subject: str, tmp_path: Path) -> None:
    authority, keystore = certificate(tmp_path)
    with registry_proxy(registry, keystore=keystore, login=LOGIN) as proxy:
        user, word = LOGIN.split(":", 1)
        allowed = kafka.Registry(proxy.url, user=user, password=word, ca=str(authority))
        known = allowed.id(subject, avro("a"), "AVRO")
        in_url = proxy.url.replace("//", "//ann:s%3Dcr%2C%C3%A9t%40%3A%2F@")
        assert kafka.Registry(in_url, ca=str(authority), register=False).id(subject, avro("a"), "AVRO") == known
        with pytest.raises(PenstockError, match=r"refuses the login: .*401.*user=") as caught:
            kafka.Registry(proxy.url, user="ann", password="wrong", ca=str(authority)).versions(subject)
        assert not caught.value.retriable
        with pytest.raises(PenstockError, match=r"certificate is not trusted: self.signed.*ca="):
            kafka.Registry(proxy.url).versions(subject)
    with pytest.raises(PenstockError, match="cannot use the certificates"):
        kafka.Registry(proxy.url, ca=str(tmp_path / "missing.pem")).versions(subject)


def test_a_password_is_never_shown() -> None:
    shown = kafka.Registry("http://ann:secret@host:1/")
    assert (shown.url, shown.user, shown.password) == ("http://host:1", "ann", "secret")
    assert "secret" not in repr(shown) and "secret" not in repr(kafka.codec("avro", registry=shown))
    with pytest.raises(PenstockError, match="'host:8081' is not the address of a schema registry") as caught:
        kafka.Registry("ann:secret@host:8081")
    assert "secret" not in str(caught.value)


def test_an_unknown_level_is_refused_before_it_is_sent() -> None:
    with pytest.raises(PenstockError, match=r"'LOOSE' is not a compatibility level\. Next: use one of BACKWARD"):
        kafka.Registry("http://nowhere:1").set_compatibility("LOOSE")  # type: ignore[arg-type]


@contextmanager
def answering(answer: bytes, status: int = 200) -> Iterator[kafka.Registry]:
    """A registry that always gives the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield kafka.Registry(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'"' + b"x" * 2000 + b'"', "more than 1000 bytes"),
        (b'{"a": 1}', 'no versions: .*"a": 1'),
    ],
)
def test_an_answer_that_is_none_of_a_registry_is_refused(
    answer: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if b"x" in answer:
        monkeypatch.setattr(client, "MOST", 1000)
    with answering(answer) as strange, pytest.raises(PenstockError, match=told):
        strange.versions("s")
    with answering(answer, 400) as strange, pytest.raises(PenstockError, match=r"refuses: .*HTTP 400"):
        strange.versions("s")


@pytest.mark.parametrize(
    ("status", "answer", "said", "retriable"),
    [
        (409, b'{"error_code": 409, "message": "too narrow"}', "incompatible with earlier versions: too narrow", False),
        (401, b"<html>", r"refuses the login: Unauthorized \(HTTP 401\)", False),
        (403, b'{"message": null}', r"refuses the login: Forbidden \(HTTP 403\)", False),
        (422, b'["not", "an", "object"]', r"refuses: Unprocessable (Entity|Content) \(HTTP 422\)", False),
        (400, b'{"message": "bad \xff"}', "refuses: bad \ufffd", False),
        (429, b'{"message": "slow down"}', r"cannot answer now: slow down \(HTTP 429\)", True),
        (500, b"", r"cannot answer now: Internal Server Error \(HTTP 500\)", True),
        (503, b"[" * 10_000, r"cannot answer now: Service Unavailable \(HTTP 503\)", True),
    ],
)
def test_a_refusal_is_told_in_the_registry_s_words_and_says_whether_it_may_pass(
    status: int, answer: bytes, said: str, retriable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", ())
    with answering(answer, status) as strange, pytest.raises(PenstockError, match=said) as caught:
        strange.ask("GET", "/subjects/s/versions", None, "s")
    assert caught.value.retriable is retriable and caught.value.where == f"subject s at {strange.url}"


@pytest.mark.parametrize("answer", [b"no json", b"\xff", b""])
def test_an_answer_that_is_cut_off_is_asked_for_again(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.001, 0.001))
    with answering(answer) as strange, pytest.raises(RegistryUnavailable, match="the schema registry does not answer"):
        strange.versions("s")


def test_a_subject_that_does_not_exist_has_no_versions_and_accepts_any_schema() -> None:
    with answering(b'{"error_code": 40401, "message": "Subject not found"}', 404) as empty:
        assert empty.versions("s") == []
        with pytest.raises(PenstockError, match=rf"has no subject s \({empty.url}\).*write a first record, register"):
            empty.schemas("s")


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (b"[7]", "id"),
        (b'{"id": "7"}', "id"),
        (b'{"id": 7}', "schema"),
        (b'{"id": 7, "schema": "{}", "schemaType": 1}', "schemaType"),
    ],
)
def test_a_member_that_is_missing_or_of_another_type_is_named(
    answer: bytes, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka.Registry, "versions", lambda *_: [1])
    with (
        answering(answer) as strange,
        pytest.raises(PenstockError, match=f"answer has no {missing}: .*Confluent's REST"),
    ):
        strange.schemas("s")


def test_the_kind_of_a_schema_is_avro_unless_the_registry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka.Registry, "versions", lambda *_: [2, 1])
    with answering(b'{"id": 7, "schema": "{}"}') as old:
        assert old.schemas("s") == [(7, "{}", "AVRO")] * 2
    with answering(b'{"id": 7, "schema": "{}", "schemaType": "JSON"}') as new:
        assert new.schemas("s") == [(7, "{}", "JSON")] * 2


@pytest.mark.parametrize(
    ("given", "url", "user", "word"),
    [
        ("http://h:1/", "http://h:1", None, None),
        ("https://h/apis/ccompat/v7/", "https://h/apis/ccompat/v7", None, None),
        ("http://ann@h:1", "http://h:1", "ann", ""),
        ("http://a%40b:p%3Aw@h:1,http://i:2", "http://h:1,http://i:2", "a@b", "p:w"),
        ("http://[::1]:8081", "http://[::1]:8081", None, None),
    ],
)
def test_a_login_in_the_address_is_taken_out_of_it(given: str, url: str, user: str | None, word: str | None) -> None:
    made = kafka.Registry(given)
    assert (made.url, made.user, made.password) == (url, user, word)
    # A login that is given counts more.
    assert kafka.Registry(given, user="bob", password="x").user == "bob"


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "//h", "http://h:1,"])
def test_what_is_no_address_of_a_registry_is_refused(url: str) -> None:
    with pytest.raises(PenstockError, match=r"is not the address of a schema registry.*http://host:8081"):
        kafka.Registry(url)
