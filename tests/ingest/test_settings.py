"""Configurations that are not valid, and their messages."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.cli import ingest
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.ingest import ingest_server
from penstock.ingest.event_schema import Numbered, load
from penstock.ingest.ingest_settings import Given, IngestLimits, NoServers, Times, Tls, read
from penstock.serve.access.callers import ApiKeys, Rate, RefusedCaller

HEAD = 'servers = "h:1"\n'
TOPIC = f"{HEAD}[topics.a]\n"
DIGEST = "0" * 64
KEY = f'{TOPIC}[[keys]]\nname = "x"\nsha256 = "{DIGEST}"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x =", "is not valid TOML"),
        ("servers = 1", "Expected `str | null`, got `int` - at `$.servers`"),
        ("[topics.a]", "no Kafka servers are given"),
        ('servers = "h"\n[topics.a]', "servers is not a list of host:port"),
        (HEAD, "no topic is given"),
        (f'{HEAD}[topics."a b"]', "'a b' is not a valid topic name"),
        (f'{HEAD}[topics.a]\nshema = "x"', r"unknown field `shema` \(.*, \[topics.a\]\). Next: use schema, key"),
        (f'{HEAD}schemas = "none"', "there is no folder .*none"),
        (f"{TOPIC}[limits]\nbody = 0", r"body is 0 \(.*, \[limits\]\)"),
        (f"{TOPIC}[limits]\nbodies = 1", "unknown field `bodies`"),
        (f"{TOPIC}[limits]\nconnections_per_address = 0", "connections_per_address is 0"),
        (f"{TOPIC}[limits]\nin_flight = 10", "in_flight is less than body"),
        (f'{TOPIC}[timeouts]\nkafka = "soon"', "kafka is not a duration: 'soon'"),
        (f'{TOPIC}[timeouts]\nkafka = "0 seconds"', "kafka is zero"),
        (f'{TOPIC}[tls]\ncertificate = "c"', "missing required field `key`"),
        (f'{TOPIC}[tls]\ncertificate = "c"\nkey = "k"', "there is no file .*/c"),
        (f'{TOPIC}[[keys]]\nname = "x"\nsha256 = "12"\ntopics = ["a"]', "not 64 hexadecimal digits"),
        (f'{TOPIC}[[keys]]\nname = "x"\nsha256 = "{DIGEST}"\ntopics = ["b"]', r"no topic b \(.*, key 'x'\)"),
        (f'{TOPIC}[[keys]]\nname = "x"\ntopics = []', r"missing required field `sha256` .*\[\[keys\]\] number 1"),
        (f"workers = 0\n{TOPIC}", r"workers is 0 \(.*\). Next: give 1 to \d+: a worker takes about a core"),
        (f"workers = -1\n{TOPIC}", "workers is -1"),
        (f"workers = 10_000\n{TOPIC}", "workers is 10000"),
        (f"workers = 2\n{TOPIC}[limits]\nin_flight = 10_000_000", "divided by 2 workers, is less than body"),
        (f'listen = "8080"\n{TOPIC}', "'8080' is not an address to listen on"),
        (f'{TOPIC}[cors]\norigins = ["shop.example"]', r"'shop.example' is not an origin .*\[cors\]\).*https://shop"),
        (f'{TOPIC}origins = ["https://shop.example/"]', r"is not an origin of web pages \(.*, \[topics.a\]\)"),
        (f'{TOPIC}[cors]\norigins = ["https://*.example"]', "is not an origin"),
        (f'{TOPIC}[cors]\norigins = ["null"]', "is not an origin"),
        (f'{TOPIC}[cors]\nmax_age = "long"', "max_age is not a duration"),
        (f'{KEY}topics = ["a"]\norigins = ["*"]', r"it has origins and is secret \(.*, key 'x'\)"),
        (f'{KEY}topics = ["*"]\norigins = ["*"]\npublishable = true', "must be for named topics"),
        (f'{KEY}topics = ["a"]\npublishable = true', "a publishable key has no origins"),
        (f'{KEY}topics = ["a"]\npublishable = true\norigins = ["x"]', r"not an origin of web pages \(.*, key 'x'\)"),
        (f'{KEY}topics = ["a"]\nrate = 0.0', "rate is 0.0"),
        (f'{KEY}topics = ["a"]\nrate = inf', "rate is inf"),
        (f'{KEY}topics = ["a"]\nrate = nan', "rate is nan"),
        (f'{KEY}topics = []\npublishable = true\norigins = ["*"]', "must be for named topics"),
        (f'{KEY}topics = ["a"]\n[[keys]]\nname = "x"\nsha256 = "{DIGEST}"\ntopics = ["a"]', "two keys have this name"),
        (f'{KEY}topics = ["a", "c", "b"]', r"no topic b, c \(.*, key 'x'\). Next: use a, or \*"),
        (f'listen = "h:65536"\n{TOPIC}', "'h:65536' is not an address to listen on .*127.0.0.1:8080"),
        (f'listen = "::1:80"\n{TOPIC}', "is not an address to listen on"),
        (f'{HEAD}[topics."."]', "'.' is not a valid topic name"),
        (f"{HEAD}[topics.{'a' * 250}]", "is not a valid topic name"),
        (f"{TOPIC}[timeouts]\nheads = 1", "unknown field `heads`.*use body, kafka, idle"),
        (f"{TOPIC}[cors]\nage = 1", r"unknown field `age` \(.*, \[cors\]\). Next: use origins, max_age"),
        (f"{TOPIC}[tls]\n", "missing required field `certificate`"),
        (f"{TOPIC}[kafka]\nlinger = 1.5", "got `float`"),
        (f"{TOPIC}[limits]\nconnections = true", "Expected `int`, got `bool`"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "ingest.toml"
    file.write_text(text)
    with pytest.raises(PenstockError, match=told):
        read(file, Given())


SLOW = r"^(a+)+\1$", "^(?!x)(a+)+$", "(?<=(a|aa)+)b", r"^(\p{L}{1,100}){1,100}$"
"""Patterns whose time is not that of the text, and one whose compiled form is large."""
SCHEMAS: list[Callable[[str], str]] = [
    lambda slow: json.dumps({"$ref": "#/$defs/b", "$defs": {"b": {"items": {"pattern": slow}}}}),
    lambda slow: json.dumps({"patternProperties": {slow: {}}}),
]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "it cannot be read: No such file"),
        ("{", "it is not valid JSON"),
        ('{"type": "objekt"}', 'it is not a valid JSON schema: "objekt" is not valid'),
        ('{"$ref": "https://example.org/x.json"}', "it is not a valid JSON schema: .*https://example.org/x.json"),
        ('{"properties": {"a": {"pattern": "("}}}', "it is not a valid JSON schema"),
        *(
            (schema(slow), f"{re.escape(repr(slow))} at /.* is not a regular expression of linear")
            for slow in SLOW
            for schema in SCHEMAS
        ),
    ],
)
def test_a_wrong_schema_is_told_with_its_topic(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PenstockError, match=rf"{told}[\s\S]*schema of topic a"):
        load(file, "a")


def test_a_pattern_may_have_a_length_in_letters_of_all_languages(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"properties": {"name": {"pattern": r"^[\p{L} ]{1,100}$"}}}))
    checked = load(file, "a")
    names = "Zoë Ångström", "4"
    problems = checked.problems([Numbered(number, {"name": name}, 50) for number, name in enumerate(names)], most=9)
    assert [problem.index for problem in problems] == [1]


def test_file_folder_and_command_line_go_together(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    for name in ("clicks", "views"):
        (tmp_path / "schemas" / f"{name}.json").write_text("{}")
    file = tmp_path / "ingest.toml"
    file.write_text(
        f'{HEAD}schemas = "schemas"\nspool = "spool"\n[topics.clicks]\nkey = "user.id"\n[kafka]\n"linger.ms" = 3'
    )
    found = read(file, Given(servers="other:2", topics=["raw"], listen="[::1]:0", workers=2))
    assert (found.servers, found.host, found.port, found.spool) == ("other:2", "::1", 0, tmp_path / "spool")
    assert {name: (one.schema, one.key) for name, one in found.topics.items()} == {
        "clicks": (tmp_path / "schemas" / "clicks.json", ("user", "id")),
        "views": (tmp_path / "schemas" / "views.json", ()),
        "raw": (None, ()),
    }
    assert found.kafka == {"linger.ms": "3"}
    assert (found.workers, read(file, Given()).workers) == (2, 1)
    shares = found.share().limits
    assert (2 * shares.in_flight, 2 * shares.spool) == (found.limits.in_flight, found.limits.spool)
    assert (shares.body, shares.events) == (found.limits.body, found.limits.events)
    assert (2 * shares.connections, shares.connections_per_address) == (found.limits.connections, None)


def test_the_command_tells_errors_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"type": 3}))
    assert main(["ingest", "--servers", "h:1", "--schemas", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("penstock: it is not a valid JSON schema: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("listen", "more", "warned"),
    [
        ("0.0.0.0:80", "", True),
        ("127.0.0.1:80", "", False),
        ("0.0.0.0:80", f'{KEY[len(TOPIC) :]}topics = ["a"]', False),
    ],
)
def test_a_server_that_others_reach_without_keys_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listen: str,
    more: str,
    warned: bool,
) -> None:
    async def greet(*_: object) -> None: ...

    monkeypatch.setattr(ingest, "_greet", greet)
    monkeypatch.setattr(ingest_server, "bind", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(ingest_server, "run", lambda *_: None)
    (tmp_path / "ingest.toml").write_text(TOPIC + more)
    assert main(["ingest", str(tmp_path / "ingest.toml"), "--listen", listen]) == 0
    assert ("0.0.0.0 without authentication" in capsys.readouterr().err) == warned


def test_a_new_key_is_shown_with_its_lines_for_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", "--new-key", "web"]) == 0
    shown = capsys.readouterr().out
    key, lines = shown.partition("this once: ")[2].split()[0], shown[shown.index("[[keys]]") :]
    (tmp_path / "ingest.toml").write_text(f"{TOPIC}{lines}")
    (found,) = read(tmp_path / "ingest.toml", Given()).keys
    access = ApiKeys([found])
    access.require("a", None, key.encode())
    access.require("a", f"Bearer {key}".encode(), None)
    with pytest.raises(RefusedCaller, match="not known"):
        access.require("a", None, key.encode() + b"x")


def test_a_new_publishable_key_is_shown_with_its_lines_for_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--publishable", "--topics", "a", "--allow-origin", "https://shop.example"]
    assert main(["ingest", "--new-key", 'the "shop"', *options]) == 0
    shown = capsys.readouterr().out
    key, lines = shown.partition("your pages: ")[2].split()[0], shown[shown.index("[[keys]]") :]
    assert key.startswith("pk_")
    assert f"/events/a?api_key={key}\n" in shown
    (tmp_path / "ingest.toml").write_text(f"{TOPIC}{lines}")
    (found,) = read(tmp_path / "ingest.toml", Given()).keys
    assert (found.name, str(found.origins)) == ('the "shop"', "https://shop.example")
    assert found.topics == frozenset({"a"})
    assert ApiKeys([found]).require("a", None, None, key.encode()) == found
    assert main(["ingest", "--publishable", "--servers", "h:1"]) == 1
    assert "--new-key NAME" in capsys.readouterr().err


@pytest.mark.parametrize(("written", "told"), [(None, "cannot be read: No such file"), (b"\xff", "is not valid TOML")])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, written: bytes | None, told: str) -> None:
    file = tmp_path / "ingest.toml"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(PenstockError, match=told) as caught:
        read(file, Given(servers="h:1", topics=["a"]))
    assert str(file) in str(caught.value)


def test_the_command_line_alone_has_the_defaults_and_its_own_name_in_errors() -> None:
    found = read(None, Given(servers="h:1", topics=["a"]))
    assert (found.host, found.port, found.workers, found.spool, found.tls) == ("127.0.0.1", 8080, 1, None, None)
    assert (found.limits, found.times, found.keys) == (IngestLimits(), Times(), ())
    assert found.preflight == timedelta(hours=2)
    with pytest.raises(NoServers, match=r"no Kafka servers are given \(penstock ingest\)"):
        read(None, Given(topics=["a"]))


def test_settings_of_all_kinds_reach_their_places(tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        (tmp_path / name).touch()
    (tmp_path / "ingest.toml").write_text(
        f"""{HEAD}allowed_hosts = ["a.example"]
        [topics.a]
        origins = []
        [topics.b]
        [limits]
        body = 1000
        [timeouts]
        idle = "1 minute"
        [tls]
        certificate = "server.pem"
        key = "server.key"
        [kafka]
        "enable.idempotence" = true
        "linger.ms" = 5
        [cors]
        origins = ["https://a.example"]
        [[keys]]
        name = "x"
        sha256 = "{DIGEST.replace("0", "A")}"
        topics = ["a", "*"]
        """
    )
    found = read(tmp_path / "ingest.toml", Given(hosts=["b.example"], origins=["https://b.example"]))
    assert (found.limits.body, found.limits.event) == (1000, 1000), "an event is not larger than its request"
    assert found.times == Times(idle=timedelta(minutes=1))
    assert found.tls == Tls(str(tmp_path / "server.pem"), str(tmp_path / "server.key"))
    assert found.kafka == {"enable.idempotence": "true", "linger.ms": "5"}
    assert found.hosts == ("a.example", "b.example")
    assert str(found.topics["b"].origins) == "https://a.example, https://b.example"
    assert str(found.topics["a"].origins) == "", "its own list replaces that of [cors]"
    (key,) = found.keys
    assert (key.digest, key.topics, key.rate, key.origins) == (bytes.fromhex("a" * 64), None, None, None)


def test_a_topics_own_schema_comes_before_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    for name in ("a.json", "b.json", "notes.txt"):
        (tmp_path / "schemas" / name).write_text("{}")
    (tmp_path / "ingest.toml").write_text(f'{HEAD}schemas = "nowhere"\n[topics.a]\nschema = "own.json"\npixel = true')
    found = read(tmp_path / "ingest.toml", Given(schemas=tmp_path / "schemas")).topics
    assert {name: (one.schema, one.pixel) for name, one in found.items()} == {
        "a": (tmp_path / "own.json", True),
        "b": (tmp_path / "schemas" / "b.json", False),
    }


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("h:0", "h", 0),
        (" 0.0.0.0:65535 ", "0.0.0.0", 65535),
        ("[::]:1", "::", 1),
        ("[fe80::1.2.3.4]:80", "fe80::1.2.3.4", 80),
    ],
)
def test_addresses_to_listen_on(listen: str, host: str, port: int) -> None:
    found = read(None, Given(servers="h:1", topics=["a"], listen=listen))
    assert (found.host, found.port) == (host, port)


def test_a_share_is_never_nothing(tmp_path: Path) -> None:
    (tmp_path / "ingest.toml").write_text(
        f"{TOPIC}[limits]\nbody = 1\nin_flight = 4\nspool = 1\nconnections = 3\nconnections_per_address = 1"
    )
    limits = read(tmp_path / "ingest.toml", Given(workers=4)).share().limits
    shares = limits.in_flight, limits.spool, limits.connections, limits.connections_per_address
    assert shares == (1, 1, 1, 1)


@pytest.mark.parametrize("name", ["topic", "kafka.servers", "delivery.timeout.ms"])
def test_settings_of_kafka_that_the_server_makes_itself_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "ingest.toml").write_text(f'{TOPIC}[kafka]\n"{name}" = "x"')
    assert main(["ingest", str(tmp_path / "ingest.toml")]) == 1
    told = capsys.readouterr().err
    assert f"{name.removeprefix('kafka.')} cannot be set here ([kafka])" in told
    assert "Next: set servers, or kafka in [timeouts]" in told


def test_rates_are_shared_by_workers(tmp_path: Path) -> None:
    (tmp_path / "ingest.toml").write_text(f'{KEY}topics = ["a"]\nrate = 10')
    (shared,) = read(tmp_path / "ingest.toml", Given(workers=2)).share().keys
    assert shared.rate == 5


def test_requests_above_a_rate_are_refused_until_time_has_passed() -> None:
    rate = Rate(2)
    assert [rate.take(now) for now in (100.0, 100.1, 100.2, 100.7, 100.8, 200.0, 200.0, 200.0)] == [
        True, True, False, True, False, True, True, False
    ]  # fmt: skip
