"""`penstock demo adtech` as a user runs it: the proof with parts killed in the middle, and nothing left behind."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from demo_process import finish, left, start

from penstock.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds what is left behind through /proc")

COUNTS = ("lost", "duplicated", "wrong")


@pytest.mark.kill
@pytest.mark.slow
def test_parts_killed_in_the_middle(tmp_path: Path) -> None:
    root, result = tmp_path / "root", tmp_path / "demo.json"
    breaks = ("--break", "ingest", "--break", "first-hop", "--break", "worker")
    demo = start(root, "adtech", "--seconds", "10", "--rate", "200", *breaks, "--json", str(result))
    said = finish(demo)
    assert demo.returncode == 0, said
    verdict = json.loads(result.read_text())
    assert {name: verdict[name] for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert verdict["broken"] == ["ingest", "first-hop", "worker"]
    compared = {stage: numbers["compared"] for stage, numbers in verdict["stages"].items()}
    assert all(compared.values()), compared
    assert compared["checked"] == compared["stored"] + verdict["copies"]
    # What the first hop has sent since its last checkpoint, five minutes ago at most, it sends again.
    assert verdict["repeated"] > 0
    assert compared["stored"] == compared["persons"] == verdict["events"] > 100
    assert compared["changes"] == verdict["changes"] > 20
    assert verdict["retries"] > 0
    assert verdict["refused"] > 0
    for delays in ("delay_s", "first_hop_s"):
        assert 0 < verdict[delays]["p50"] <= verdict[delays]["p99"]
    assert left(root) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("adtech", "--break", "generation"), "'generation' is not a part that can be broken .*demo adtech.*ingest"),
        (("--break", "ingest"), "'ingest' is not a part that can be broken .*penstock demo cdc.*generation"),
        (("adtech", "--rate", "max"), "--rate max does not work here .*give a number"),
    ],
    ids=["a break of the other demo", "a break of adtech", "as fast as it goes"],
)
def test_what_an_application_cannot_do_is_told(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *options]) == 1
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("options", [("shop",), ("adtech", "--seconds", "0"), ("adtech", "--rate", "-3")])
def test_wrong_arguments_are_usage_errors(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *options])
    assert end.value.code == 2
    assert options[-1] in capsys.readouterr().err
