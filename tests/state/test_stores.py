"""State stores as Spark's files describe them, without Spark; answers, and their errors over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.state.serve import app
from penstock.state.stores import (
    LIMIT,
    Freshness,
    NoSuchState,
    StateRows,
    cut,
    find,
    of_columns,
    require_some,
    stores,
    unknown,
)

Operator = tuple[str, Sequence[str]]
"""The name of an operator and its state variables."""


def checkpoint(folder: Path, *operators: Operator, commits: Sequence[int] = (), version: int = 2) -> Path:
    """A query's checkpoint with the files of its operators, as Spark writes them."""
    (folder / "offsets").mkdir(parents=True)
    for number, (name, variables) in enumerate(operators):
        properties = json.dumps({"stateVariables": [{"stateName": one} for one in variables]}) if variables else ""
        about = {"operatorInfo": {"operatorId": number, "operatorName": name}, "operatorPropertiesJson": properties}
        metadata = folder / "state" / str(number) / "_metadata"
        file = metadata / "metadata" if version == 1 else metadata / "v2" / "0"
        file.parent.mkdir(parents=True)
        file.write_text(f"v{version}\n{json.dumps(about)}")
        for part in (0, 1, 2):
            (folder / "state" / str(number) / str(part)).mkdir()
    (folder / "commits").mkdir()
    for number in commits:
        (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def names(folder: Path) -> list[str]:
    return [store.name for store in stores(folder)]


def test_a_store_is_named_by_its_query_and_operator(tmp_path: Path) -> None:
    checkpoint(tmp_path / "one", ("stateStoreSave", ()))
    checkpoint(tmp_path / "two/inner", ("dedupe", ()), ("symmetricHashJoin", ()), ("dedupe", ()))
    assert names(tmp_path) == [
        "one/stateStoreSave",
        "two/inner/dedupe-0",
        "two/inner/symmetricHashJoin/left",
        "two/inner/symmetricHashJoin/right",
        "two/inner/dedupe-2",
    ]
    options = {store.name: store.options for store in stores(tmp_path)}
    assert options["two/inner/dedupe-2"] == {"operatorId": "2"}
    assert options["two/inner/symmetricHashJoin/right"] == {"operatorId": "1", "joinSide": "right"}


def test_stages_of_penstock_have_the_names_that_users_gave_them(tmp_path: Path) -> None:
    stage = "transformWithStateInPySparkExec"
    checkpoint(
        tmp_path / "shop",
        (stage, ["per_page__head", "per_page__log", "$procTimers_keyToTimestamp"]),
        (stage, ["back__entries", "back__head"]),
        (stage, ["mine__head", "other"]),
    )
    found = {store.name: (store.packed, store.options.get("stateVarName")) for store in stores(tmp_path)}
    assert found == {
        "shop/per_page": ("__log", "per_page__log"),
        "shop/back": ("__entries", "back__entries"),
        # Another processor's variables, though one has such a name.
        f"shop/{stage}-2/mine__head": ("", "mine__head"),
        f"shop/{stage}-2/other": ("", "other"),
    }


def test_the_order_of_operators_and_batches_is_that_of_numbers(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "q", *[("save", ())] * 12, commits=[2, 9, 10])
    (folder / "commits" / ".10.crc").write_text("")
    (folder / "commits" / "11.tmp").write_text("")
    assert names(tmp_path) == [f"q/save-{number}" for number in range(12)]
    store = find(tmp_path, "q/save-3")
    os.utime(folder / "commits" / "10", (1000, 1000))
    assert store.fresh() == Freshness(10, datetime.fromtimestamp(1000, UTC))
    assert store.partitions == 3


def test_a_description_in_sparks_first_format_is_read(tmp_path: Path) -> None:
    checkpoint(tmp_path / "old", ("stateStoreSave", ()), version=1)
    assert names(tmp_path) == ["old/stateStoreSave"]


def test_the_newest_description_of_an_operator_counts(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "q", ("before", ()))
    about = {"operatorInfo": {"operatorId": 0, "operatorName": "after"}}
    for number, text in ((2, "v2\n{}"), (10, f"v2\n{json.dumps(about)}")):
        (folder / f"state/0/_metadata/v2/{number}").write_text(text)
    assert names(tmp_path) == ["q/after"]


def test_what_is_no_checkpoint_or_was_set_aside_is_not_listed(tmp_path: Path) -> None:
    checkpoint(tmp_path / "q", ("save", ()))
    checkpoint(tmp_path / ".reset-1/q", ("save", ()))
    (tmp_path / "elsewhere/state").mkdir(parents=True)
    (tmp_path / "q/state/_other").mkdir()
    assert names(tmp_path) == ["q/save"]
    # A folder that is itself below one with a dot is listed.
    assert names(tmp_path / ".reset-1") == ["q/save"]


@pytest.mark.parametrize("text", ["", "v2", "v2\n", "v2\n{", "v2\n\xff"])
def test_a_description_that_cannot_be_read_is_reported_with_its_file(tmp_path: Path, text: str) -> None:
    folder = checkpoint(tmp_path / "q", ("save", ()))
    (folder / "state/0/_metadata/v2/0").write_bytes(text.encode("latin-1"))
    with pytest.raises(PenstockError, match=r"no description of the state: .*_metadata/v2/0.*wait for the first batch"):
        stores(tmp_path)


def test_a_name_may_be_cut_short_if_it_is_of_one_store(tmp_path: Path) -> None:
    checkpoint(tmp_path / "shop/clicks", ("save", ()), commits=[0])
    checkpoint(tmp_path / "shop/buys", ("save", ()), ("symmetricHashJoin", ()))
    for name in ("shop/clicks/save", "shop/clicks"):
        assert find(tmp_path, name).name == "shop/clicks/save"
    with pytest.raises(
        NoSuchState, match=r"shop/buys names 3 states .checkpoints in .*choose one of: shop/buys/save, "
    ):
        find(tmp_path, "shop/buys")
    # The start of a word is not the start of a name.
    with pytest.raises(NoSuchState, match=r"there is no state shop/click .*choose one of: shop/buys/save"):
        find(tmp_path, "shop/click")
    with pytest.raises(PenstockError, match=r"shop/buys/save holds nothing yet: no batch is committed.*wait"):
        find(tmp_path, "shop/buys/save").fresh()


def test_without_any_state_the_next_step_is_to_wait(tmp_path: Path) -> None:
    with pytest.raises(NoSuchState, match=r"there is no state x .*wait for the first batch: there is none yet"):
        find(tmp_path, "x")
    assert unknown("x", ["x/a", "x/b"], [], "here").what == "x names 2 states"


def test_an_answer_says_how_old_it_is_and_whether_there_are_more_rows() -> None:
    ago = datetime.now(UTC) - timedelta(minutes=1)
    told = cut("s", Freshness(7, ago), [1, 2, 3], 2).to_json()
    assert (told["rows"], told["more"], told["batch"], told["committed"]) == ([1, 2], True, 7, ago.isoformat())
    assert 60 <= told["age_seconds"] < 90
    assert not cut("s", Freshness(7, ago), [1, 2], 2).more
    assert Freshness(None, None).to_json() == {"batch": None, "committed": None, "age_seconds": None}
    with pytest.raises(NoSuchState, match=r"s has nothing under the key k .batch 7.*penstock state scan s"):
        require_some(StateRows("s", Freshness(7, ago), []), "k")


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ('{"a": 1, "b": null}', {"a": 1, "b": None}),
        ("{}", {}),
        ("ann", None),
        ("5", None),
        ('"ann"', None),
        ("[1]", None),
        ("{", None),
        ("", None),
    ],
)
def test_a_key_is_a_json_object_or_the_value_of_the_only_column(key: str, columns: dict[str, Any] | None) -> None:
    assert of_columns(key) == columns


class Fake:
    """States without rows to read; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def overview(self) -> list[dict[str, Any]]:
        return [{"name": "q/s"}]

    def get(self, name: str, key: str, limit: int = LIMIT) -> StateRows:
        self.asked.append((name, key, limit))
        return require_some(StateRows(name, Freshness(1, None), [key] if key else []), key)

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> StateRows:
        self.asked.append((name, where, limit))
        if name == "away":
            raise type("Away", (PenstockError,), {"retriable": True})("it is away", next="wait")
        return StateRows(name, Freshness(1, None), [1])


def ask(server: Starlette, path: str, query: str = "") -> tuple[int, Any]:
    """The status and the JSON of an answer, without a socket."""
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    (route,) = [one for one in server.routes if one.matches(scope)[0].value == 2]
    scope |= route.matches(scope)[1]
    answer: Response = route.endpoint(Request(scope))  # type: ignore[attr-defined]
    return answer.status_code, json.loads(bytes(answer.body))


@pytest.mark.parametrize(
    ("path", "query", "asked"),
    [
        ("/state/q/s", "", ("q/s", None, LIMIT)),
        ("/state/q/s", "limit=7", ("q/s", None, 7)),
        ("/state/q/s", "key=ann&limit=007", ("q/s", "ann", 7)),
        ("/state/q/s", "key=%7B%22a%22%3A%201%7D", ("q/s", '{"a": 1}', LIMIT)),
        # A condition in SQL could call any function: it is passed over.
        ("/state/q/s", "where=n%20%3D%201", ("q/s", None, LIMIT)),
    ],
)
def test_a_request_asks_for_rows_of_a_key_or_of_a_state(path: str, query: str, asked: tuple[Any, ...]) -> None:
    states = Fake()
    status, answer = ask(app(states), path, query)
    assert (status, answer["name"]) == (200, "q/s") and states.asked == [asked]


@pytest.mark.parametrize(
    ("path", "query", "status", "said"),
    [
        *[
            ("/state/q/s", f"limit={text}", 400, "limit is not a number of rows")
            for text in ("0", "-1", "x", "1.5", "")
        ],
        ("/state/q/s", "key=", 404, "has nothing under the key"),
        ("/state/away", "", 503, "it is away"),
    ],
)
def test_a_wrong_request_is_answered_with_the_next_step(path: str, query: str, status: int, said: str) -> None:
    found, answer = ask(app(Fake()), path, query)
    assert found == status and said in answer["error"] and answer["next"]


def test_the_overview_is_a_list_of_all_states() -> None:
    assert ask(app(Fake()), "/state") == (200, [{"name": "q/s"}])
