"""The dashboards: valid expressions, places without overlaps, units, descriptions; and the command that writes them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import promtool

from penstock.cli.dashboards import files
from penstock.cli.main import main
from penstock.watch.dashboards import dashboards
from penstock.watch.grafana import WIDTH

ROOT = Path(__file__).parents[2]
BOARDS = {board.uid: json.loads(board.text()) for board in dashboards()}
VARIABLE = re.compile(r"\$(\w+|\{\w+)")
GIVEN_BY_GRAFANA = {"__rate_interval", "__range"}
UNITS = {"none", "s", "bytes", "Bps", "ops", "reqps", "rowsps", "percentunit"}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def test_the_committed_files_are_those_of_the_command() -> None:
    for name, text in files().items():
        assert (ROOT / "deploy" / name).read_text() == text
    committed = {path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy/grafana").iterdir()}
    assert committed == {name for name in files() if name.parts[0] == "grafana"}


@pytest.mark.parametrize("uid", BOARDS)
def test_each_panel_has_a_place_a_unit_a_description_and_a_number_of_its_own(uid: str) -> None:
    board = BOARDS[uid]
    numbers = Counter(panel["id"] for panel in board["panels"])
    assert set(numbers.values()) == {1}
    assert all(panel["description"] and panel["title"] and panel["targets"] for panel in panels(board))
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels(board)} <= UNITS
    cells = [(panel["title"], _cells(panel["gridPos"])) for panel in board["panels"]]
    for (one, its), (other, theirs) in combinations(cells, 2):
        assert not its & theirs, (one, other)
    refs = [[target["refId"] for target in panel["targets"]] for panel in panels(board)]
    assert all(len(set(each)) == len(each) for each in refs)


def _cells(place: dict[str, int]) -> set[tuple[int, int]]:
    assert place["x"] >= 0 and place["x"] + place["w"] <= WIDTH and place["h"] > 0
    return {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}


@pytest.mark.parametrize("uid", BOARDS)
def test_each_variable_is_defined_once_and_used(uid: str) -> None:
    board = BOARDS[uid]
    names = [one["name"] for one in board["templating"]["list"]]
    assert names[0] == "datasource" and board["templating"]["list"][0]["type"] == "datasource"
    assert len(set(names)) == len(names)
    asked = [*expressions(board), *(one["query"]["query"] for one in board["templating"]["list"][1:])]
    used = {name.lstrip("{") for text in asked for name in VARIABLE.findall(text)} - GIVEN_BY_GRAFANA
    assert used == set(names[1:])
    sources = [json.dumps(panel["datasource"]) for panel in panels(board)]
    assert set(sources) == {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_identities_and_versions_are_fixed() -> None:
    assert list(BOARDS) == ["penstock-overview", "penstock-pipeline", "penstock-ingest", "penstock-producer"]
    assert {board["schemaVersion"] for board in BOARDS.values()} == {39}
    # Links lead to dashboards that exist.
    found = re.findall(r"/d/([\w-]+)\?", "".join(json.dumps(board) for board in BOARDS.values()))
    assert found and set(found) <= set(BOARDS)


def test_promtool_takes_each_expression_as_a_rule(tmp_path: Path) -> None:
    found = [_with_values(text) for board in BOARDS.values() for text in expressions(board)]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(found)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(found)} rules found" in checked.stdout


def _with_values(text: str) -> str:
    return VARIABLE.sub(lambda found: "1m" if found[1] in GIVEN_BY_GRAFANA else ".*", text)


# The command.


def test_the_command_says_what_it_wrote_and_where_to_put_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new/monitoring"
    assert main(["dashboards", "--out", str(out), "--runbooks", "https://docs.example/alerts.html"]) == 0
    said = capsys.readouterr().out.splitlines()
    written = {path for path in out.rglob("*") if path.is_file()}
    assert {f"wrote {path}" for path in written} == set(said[:-2])
    assert {path.relative_to(out) for path in written} == set(files())
    assert f"add {out}/prometheus/penstock-rules.yml to rule_files" in said[-2]
    assert f"{out}/grafana" in said[-1]
    rules = (out / "prometheus/penstock-rules.yml").read_text()
    assert "https://docs.example/alerts.html#penstockdown" in rules
    # The same again is no change.
    assert main(["dashboards", "--out", str(out), "--runbooks", "https://docs.example/alerts.html"]) == 0


def test_a_file_of_somebody_else_is_not_replaced_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "prometheus/penstock-rules.yml"
    foreign.parent.mkdir()
    foreign.write_text("groups: []\n")
    assert main(["dashboards", "--out", str(tmp_path), "--replace"]) == 1
    assert f"{foreign} was not written by this command" in capsys.readouterr().err
    assert foreign.read_text() == "groups: []\n"
    assert not (tmp_path / "grafana").exists()


def test_changes_of_the_user_are_kept_until_they_are_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboards", "--out", str(tmp_path)]) == 0
    rules = tmp_path / "prometheus/penstock-rules.yml"
    made = rules.read_text()
    rules.write_text(made.replace("warning", "info"))
    assert main(["dashboards", "--out", str(tmp_path)]) == 1
    assert "differs from what would be written" in capsys.readouterr().err
    assert "severity: info" in rules.read_text()
    assert main(["dashboards", "--out", str(tmp_path), "--replace"]) == 0
    assert rules.read_text() == made


@pytest.mark.parametrize("taken", ["", "grafana", "grafana/penstock-overview.json"])
def test_a_place_that_cannot_be_used_is_an_error_of_one_line(
    taken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where a folder has to be, and a folder where a file has to be."""
    place = tmp_path / "out" / taken
    if taken.endswith(".json"):
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    assert main(["dashboards", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock: ") and "Next: give another --out" in said and said.count("\n") == 1
