"""`penstock demo`: arguments that it refuses before it starts anything, and what becomes of a demo's verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import demo
from penstock.cli.main import main
from penstock.extras import install
from penstock_demo import parts
from penstock_demo.run import Demo
from penstock_demo.stage import Options
from penstock_demo.verdict import PROBLEMS, Verdict
from penstock_demo.view import View

Command = Callable[..., Any]


@pytest.mark.parametrize("place", [".", "file/result.json"])
def test_a_result_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--root", str(tmp_path / "root"), "--json", str(tmp_path / place)]) == 1
    assert "penstock: the result cannot be written: " in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *[([f"--seconds={text}"], f"{text!r} is not a number of seconds above 0") for text in ("0", "-1", "x", "inf")],
        (["--seconds=nan"], "'nan' is not a number of seconds above 0"),
        *[
            ([f"--rate={text}"], f"{text!r} is not a number of writes per second, auto or max")
            for text in ("0", "-5", "1e3")
        ],
        (["--rate=nan"], "'nan' is not a number of writes per second, auto or max"),
        (["shop"], "invalid choice: 'shop'"),
        (["cdc", "--json"], "argument --json: expected one argument"),
    ],
    ids=str,
)
def test_wrong_numbers_are_told_with_the_option(penstock: Command, words: list[str], said: str) -> None:
    ran = penstock("demo", *words)
    assert ran.code == 2 and said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["cdc", "--break", "postgres"],
            "'postgres' is not a part that can be broken (penstock demo cdc). Next: choose",
        ),
        (
            ["adtech", "--break", "alter"],
            "'alter' is not a part that can be broken (penstock demo adtech). Next: choose",
        ),
        (["adtech", "--rate", "max"], "--rate max does not work here (penstock demo adtech). Next: give a number"),
        (
            ["cdc", "--nodes", "2"],
            "--nodes and --through-kafka are for the demo of a replication (penstock demo cdc). Next: run",
        ),
        (["replicate", "--break", "target"], "--break target needs --nodes 2 (penstock demo replicate). Next: add"),
        (["adtech", "--cluster", "2"], "--cluster does not work here (penstock demo adtech). Next: leave it out"),
    ],
    ids=str,
)
def test_what_a_demo_cannot_do_is_told_before_it_starts(
    tmp_path: Path, penstock: Command, words: list[str], said: str
) -> None:
    ran = penstock("demo", *words, "--root", tmp_path / "root")
    assert ran.code == 1 and said in ran.err and not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("application", "missing", "said"),
    [
        ("cdc", {"rich"}, f"the demo needs rich. Next: run: {install('demo')}\n"),
        ("cdc", {"httptools"}, None),
        (
            "adtech",
            {"cassandra", "msgspec"},
            f"the demo needs cassandra-driver, msgspec. Next: run: {install('demo,segments,postgres,ingest')}\n",
        ),
    ],
)
def test_missing_packages_are_named_with_what_installs_them(
    monkeypatch: pytest.MonkeyPatch, penstock: Command, application: str, missing: set[str], said: str | None
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in missing else find_spec(name))
    ran = penstock("demo", application, "--break", "nothing")
    assert ran.code == 1 and ran.err.endswith(said or "spark, worker, kafka, cassandra, alter, generation\n")


def verdict(**problems: int) -> Verdict:
    counts = {**dict.fromkeys(PROBLEMS, 0), "replayed": 0, "late": 0, "tombstones": 2, **problems}
    delays = {"delay_p50_s": 0.25, "delay_p99_s": 1.5, "delay_max_s": 2.0}
    rates = {"rate_per_s": 99.6, "events_per_s": 120.0, "seconds": 10.0}
    more = {"warm_up_writes": 100, "retries": 0, "cpu_s": {"kafka": 1.5}}
    return Verdict(writes=1000, events=1100, **counts, **delays, **rates, **more)  # type: ignore[arg-type]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdict], list[Options]]:
    """Lets the demo of the shop end at once with a verdict; the list has the options of each run."""
    given: list[Options] = []

    def end_with(result: Verdict) -> list[Options]:
        def begin(self: Demo, options: Options, view: View, stack: ExitStack) -> None:
            given.append(options)

        monkeypatch.setattr(Demo, "__init__", begin)
        monkeypatch.setattr(Demo, "run", lambda self: result)
        return given

    return end_with


def test_a_good_run_is_a_table_a_file_and_exit_code_0(
    tmp_path: Path, penstock: Command, ended: Callable[[Verdict], list[Options]]
) -> None:
    given, file = ended(verdict()), tmp_path / "new" / "demo.json"
    ran = penstock("demo", "--root", tmp_path, "--json", file, "--break", "kafka", "--break", "spark", "--rate", "max")
    assert ran.code == 0 and "Nothing lost." in ran.out
    assert given == [Options(tmp_path, 60, "max", ("kafka", "spark"), keep=False)]
    told = json.loads(file.read_text())
    assert {name: told[name] for name in PROBLEMS} == dict.fromkeys(PROBLEMS, 0)
    assert (told["writes"], told["delay_p99_s"], told["cpu_s"], told["examples"]) == (1000, 1.5, {"kafka": 1.5}, [])
    assert "ok" not in told


@pytest.mark.parametrize("problem", PROBLEMS)
def test_any_problem_is_exit_code_1(
    penstock: Command, ended: Callable[[Verdict], list[Options]], tmp_path: Path, problem: str
) -> None:
    bad = verdict(**{problem: 3})
    bad.examples = [{"problem": problem, "key": [1]}]
    ended(bad)
    ran = penstock("demo", "--root", tmp_path)
    assert ran.code == 1 and "The demo failed." in ran.out and f"'problem': '{problem}'" in ran.out
    (line,) = [line for line in ran.out.splitlines() if f"│ {problem} " in line]
    assert line.split("│")[2].strip() == "3"


def test_late_writes_explain_lost_events(
    tmp_path: Path, penstock: Command, ended: Callable[[Verdict], list[Options]]
) -> None:
    ended(verdict(lost=1, late=4))
    assert "4 writes took longer than the confidence window of the reader." in penstock("demo", "--root", tmp_path).out
    ended(verdict(late=4))
    assert "confidence window" not in penstock("demo", "--root", tmp_path).out


def test_replays_are_shown_only_after_a_break(
    tmp_path: Path, penstock: Command, ended: Callable[[Verdict], list[Options]]
) -> None:
    broken = verdict(replayed=7)
    ended(broken)
    assert "replayed" not in penstock("demo", "--root", tmp_path).out
    broken.broken = ["spark"]
    assert "replayed after the break" in penstock("demo", "--root", tmp_path).out


def test_the_usual_options_are_those_of_the_application(
    penstock: Command, ended: Callable[[Verdict], list[Options]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ended(verdict())
    assert penstock("demo").code == 0
    assert given == [Options(Path.cwd() / ".penstock/demo", 60, "auto", (), keep=False)]


def test_what_keeps_running_is_told_with_how_to_stop_it(
    tmp_path: Path,
    penstock: Command,
    ended: Callable[[Verdict], list[Options]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "kept", lambda root: [("pipeline", os.getpid()), ("ingest", 7)])
    ended(verdict())
    lines = penstock("demo", "--keep", "--root", tmp_path).out.splitlines()[-3:]
    assert lines == [
        "The services and the pipeline keep running. Topics: "
        "shop.shop.orders, shop.shop.carts, shop.shop.visits, shop.shop.products",
        f"Addresses: penstock status --root {tmp_path}",
        f"Stop: kill {os.getpid()} 7; penstock down --root {tmp_path}",
    ]
