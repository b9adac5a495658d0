"""Invalid arguments: the usage and exit code 2, before anything is done."""

from __future__ import annotations

import socket
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest

from penstock.cli.arguments import listen_place
from penstock.cli.main import COMMANDS, _parser, main
from penstock.errors import PenstockError
from penstock.serve.rest_server import bind

BROKERS = [
    ["connect"],
    ["topics", "list"],
    ["segment", "sync", "a"],
    ["segment", "serve"],
    ["segment", "erase", "ann"],
    ["erase", "email", "a@b"],
]
SEGMENT = ["--keyspace", "k", "--hosts", "127.0.0.1:1"]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: penstock ")
    return said.splitlines()[-1]


@pytest.mark.parametrize("cores", ["0", "-1", "x", "1.5", ""])
@pytest.mark.parametrize("words", [["run", "a.py:b"], ["connect"], ["state", "list"]], ids=lambda words: words[0])
def test_cores_are_one_or_more(capsys: pytest.CaptureFixture[str], words: list[str], cores: str) -> None:
    assert f"argument --cores: {cores!r} is not a number, 1 or more" in refusal(capsys, *words, f"--cores={cores}")


@pytest.mark.parametrize(
    "words",
    [
        ["state", "list", "--checkpoints"],
        ["status", "--checkpoints"],
        ["console", "--checkpoints"],
        ["connect", "--data"],
    ],
    ids=lambda words: words[0],
)
def test_a_uri_is_not_taken_for_the_name_of_a_folder(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    said = refusal(capsys, *words, "hdfs://10.0.0.5:8020/a")
    assert "hdfs://10.0.0.5:8020/a is not a folder of this machine, and this command reads no other" in said


@pytest.mark.parametrize("port", ["-1", "65536", "x", ""])
@pytest.mark.parametrize("words", [["state", "serve"], ["segment", "serve", *SEGMENT]], ids=lambda words: words[0])
def test_a_port_is_one_or_any_that_is_free(capsys: pytest.CaptureFixture[str], words: list[str], port: str) -> None:
    assert f"argument --port: {port!r} is not a port" in refusal(capsys, *words, f"--port={port}")


def test_a_misspelt_option_shows_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "a.py:b", "--corse", "2"], ["state", "list", "--corse", "2"]):
        with pytest.raises(SystemExit):
            main(words)
        said = capsys.readouterr().err
        assert said.startswith(f"usage: penstock {words[0]} ") and "Next: did you mean --cores?" in said


@pytest.mark.parametrize("servers", ["localhost", "localhost:99999", ""])
@pytest.mark.parametrize("words", BROKERS, ids=lambda words: "-".join(words[:2]))
def test_brokers_have_a_host_and_a_port(capsys: pytest.CaptureFixture[str], words: list[str], servers: str) -> None:
    said = refusal(capsys, *words, f"--servers={servers}")
    assert f"argument --servers: servers is not a list of host:port: {servers!r}" in said


def test_an_address_that_is_taken_is_told_without_an_option_that_not_all_commands_have() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PenstockError) as raised:
        bind("127.0.0.1", taken.getsockname()[1])
    assert raised.value.next == "stop what listens there, or choose another address"


@pytest.mark.parametrize("place", ["9400", "127.0.0.1", ":9400", "::1:9400", "127.0.0.1:x", "127.0.0.1:65536", ""])
@pytest.mark.parametrize("words", [["run", "a.py:b"], ["connect"]], ids=lambda words: words[0])
def test_metrics_are_at_a_host_and_a_port(capsys: pytest.CaptureFixture[str], words: list[str], place: str) -> None:
    assert "argument --metrics: " in refusal(capsys, *words, f"--metrics={place}")


@pytest.mark.parametrize(
    ("text", "place"),
    [("none", None), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9400", ("::1", 9400)), ("host:9400", ("host", 9400))],
)
def test_a_place_for_metrics(text: str, place: tuple[str, int] | None) -> None:
    assert listen_place(text) == place


# Names of options.


def parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """A parser, and those of the commands and actions below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_can_be_cut_short(command: str) -> None:
    """What is the only option with this beginning today would be another one's name tomorrow."""
    (chosen,) = (action.choices[command] for action in _parser(command)._actions if isinstance(action.choices, dict))
    for parser in parsers(chosen):
        names = [name for name in parser._option_string_actions if name.startswith("--")]
        assert names and all(not parser._get_option_tuples(name[:-1]) for name in names if name[:-1] not in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics", "tail", "t", "--max-d", "5"], "--max-d 5. Next: did you mean --max-decompressed-bytes?"),
        (["topics", "alter", "t", "--unse", "a"], "--unse a. Next: did you mean --unset?"),
        (["status", "--js"], "--js. Next: did you mean --json?"),
    ],
)
def test_a_part_of_an_option_is_refused_with_its_whole_name(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert refusal(capsys, *words).endswith(f"unrecognized arguments: {said}")


@pytest.mark.parametrize(
    ("kafkas", "ours"),
    [
        ("topics list --bootstrap-server k:1", "topics list --servers k:1"),
        ("groups list --bootstrap-server k:1", "groups list --servers k:1"),
        ("topics create t --replication-factor 3 --config a=b", "topics create t --replication 3 --set a=b"),
        ("topics alter t --add-config a=b,c=[d,e],f=[g]", "topics alter t --set a=b --set c=d,e --set f=g"),
        ("topics alter t --config a=b,c --add-config d=e", "topics alter t --set a=b,c --set d=e"),
        ("topics alter t --delete-config a,b", "topics alter t --unset a --unset b"),
        ("topics tail t --from-beginning --max-messages 3", "topics tail t --from earliest --limit 3"),
    ],
)
def test_options_of_kafkas_own_tools_mean_the_same(kafkas: str, ours: str) -> None:
    assert _parser(kafkas.split()[0]).parse_args(kafkas.split()) == _parser(ours.split()[0]).parse_args(ours.split())
