"""The fault campaign without its servers: the same plan for a seed, the folder of a failed round, the report."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import soak
from campaign import plan, report
from campaign.breaks import Impossible, Struck
from campaign.plan import Round
from campaign.report import Report
from campaign.runner import campaign
from campaign.shop import _plain, numbered

GOOD = {"writes": 10, "events": 12, "lost": 0, "duplicated": 0, "misordered": 0, "wrong": 0}


def drawn(seed: int, count: int, **chosen: Any) -> list[Round]:
    return list(islice(plan.rounds(seed, **chosen), count))


def test_a_seed_is_a_plan() -> None:
    assert drawn(7, 60) == drawn(7, 60)
    assert drawn(7, 60) != drawn(8, 60)
    assert str(drawn(7, 3)[2]).startswith("--seed 7 --round 3: ")


def test_a_campaign_of_some_length_has_each_break_of_each_application() -> None:
    wanted = set(plan.pairs())
    assert {(one.application, one.breaks[0].kind) for one in drawn(3, len(wanted))} == wanted


def test_breaks_follow_each_other_and_the_settings_allow_them() -> None:
    wrong = {one.number: problems for one in drawn(11, 300) if (problems := unlike_its_settings(one))}
    assert wrong == {}


def unlike_its_settings(one: Round) -> list[str]:
    """What is wrong with a round."""
    ends = [0.0, *(broken.at + broken.lasts for broken in one.breaks)]
    parts = {broken.kind.split()[1] for broken in one.breaks}
    shop, settings = one.application == "shop", one.settings
    rules = {
        "a break begins before the end of another": any(
            broken.at <= end for broken, end in zip(one.breaks, ends, strict=False)
        ),
        "the round ends before its breaks": one.seconds <= ends[-1],
        "a sink breaks that it lacks": shop and not {"postgres", "files"} & parts <= set(settings["sinks"].split("+")),
        "a registry breaks that it lacks": shop and not ("registry" in parts) <= (settings["format"] == "avro-keys"),
        "a format that its sinks lack": shop and settings["format"] != "json" and settings["sinks"] != "kafka",
        "a clock jumps too far": any(broken.jump >= 30 for broken in one.breaks),
    }
    return [problem for problem, is_so in rules.items() if is_so]


@pytest.mark.parametrize(
    ("only", "application", "kinds"),
    [
        (["broker"], None, {"kill broker", "pause broker", "full broker"}),
        (["kill broker"], "shop", {"kill broker"}),
        (["table", "new generation"], None, {"alter table", "new generation"}),
    ],
)
def test_only_some_breaks(only: list[str], application: str | None, kinds: set[str]) -> None:
    found = drawn(1, 40, only=only, application=application)
    assert {broken.kind for one in found for broken in one.breaks} == kinds
    assert application is None or {one.application for one in found} == {application}


def test_a_round_that_fails_keeps_its_logs_and_the_report_tells_it(tmp_path: Path) -> None:
    def play(one: Round, folder: Path, struck: list[Struck], undo: ExitStack) -> dict[str, Any]:
        (folder / "pipeline.log").write_text("what happened")
        struck.append(Struck(one.breaks[0].kind, str(one.breaks[0]), 5_000_000))
        struck[0].flows([4_000_000, 6_000_000, 7_000_000], [9_000_000, 8_500_000, 8_000_000])
        if one.number == 2:
            raise RuntimeError("the pipeline ended")
        if one.number == 4:
            raise Impossible("no clock to change")
        return GOOD | {"lost": one.number == 3}

    said: list[str] = []
    file = tmp_path / "report.json"
    made = campaign(drawn(1, 5), Report(1), play, tmp_path, file=file, say=said.append)
    assert [played.state for played in made.rounds] == ["good", "failed", "failed", "impossible", "good"]
    assert [played.number for played in made.failed] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "round-2", "round-3"]
    assert "the pipeline ended" in (tmp_path / "round-2" / "error.txt").read_text()
    assert made.rounds[0].breaks[0]["flowed_s"] == 3.0
    assert report.read(file) == made
    assert any("--seed 1 --round 3: " in line for line in said)
    table = report.table([made])
    assert "4 rounds (seed 1), 4 breaks." in table
    assert "Not played: 1 rounds (no clock to change)." in table
    assert sum(int(row.split("|")[6]) for row in table.splitlines() if row[:5] in ("| sho", "| adt")) == 1


def test_a_campaign_ends_with_its_time(tmp_path: Path) -> None:
    made = campaign(plan.rounds(1), Report(1), lambda *_: GOOD, tmp_path, minutes=0, say=lambda line: None)
    assert made.rounds == []


def test_the_command_prints_plans_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--plan", "--seed", "4", "--round", "9"]) == 0
    assert capsys.readouterr().out == f"{drawn(4, 9)[8]}\n"
    file = tmp_path / "report.json"
    campaign(drawn(2, 2), Report(2), lambda *_: GOOD, tmp_path, file=file, say=lambda line: None)
    assert json.loads(file.read_text())["rounds"][0]["numbers"] == GOOD
    assert soak.main(["--table", str(file)]) == 0
    assert "2 rounds (seed 2)" in capsys.readouterr().out


def test_a_campaign_goes_on_with_the_rounds_that_are_not_good_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, options = tmp_path / "report.json", ["--plan", "--seed", "3", "--rounds", "3"]
    assert soak.main([*options, "--continue", "--report", str(file)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3, "without a report none is played yet"

    def play(one: Round, *_: object) -> dict[str, Any]:
        return GOOD | {"wrong": one.number == 2}

    campaign(drawn(3, 2), Report(3), play, tmp_path, file=file, say=lambda line: None)
    assert soak.main([*options, "--continue", "--report", str(file)]) == 0
    assert capsys.readouterr().out == "".join(f"{drawn(3, 3)[number]}\n" for number in (1, 2))
    assert [played.number for played in report.begun(file, 3).rounds] == [1]
    with pytest.raises(SystemExit, match="is of seed 3, not 4: give --seed 3"):
        soak.main(["--plan", "--seed", "4", "--continue", "--report", str(file)])
    with pytest.raises(SystemExit):
        soak.main(["--plan", "--seed", "3", "--continue"])
    assert "--continue needs the --report" in capsys.readouterr().err


def test_rows_of_a_sink_are_records_with_tombstones_behind_their_deletes() -> None:
    def event(op: str, ts: int) -> str:
        source = {"name": "shop", "keyspace_name": "shop", "table_name": "visits", "ts_us": ts}
        return json.dumps({"op": op, "before": None, "after": None, "source": source})

    key = json.dumps({"shopper": 1, "day": 2, "slot": 3})
    rows = [("shop.shop.visits", key, value) for value in (event("d", 9), None, event("c", 5))]
    found = [(record.op, record.stamp, record.offset) for record in numbered(rows)]
    assert found == [("c", 5, 0), ("d", 9, 1), ("", 0, 2)]


def test_keys_in_avro_are_those_of_json() -> None:
    assert [_plain(value) for value in (7, "a", None, date(1970, 1, 3))] == [7, "a", None, 2]
