"""`penstock checkpoints` on folders in Spark's format, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checkpoints import write_batches

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.identity import FILE, CheckpointIdentity, SinkTarget, SourceIdentity, keep
from penstock.checkpoint.log import CheckpointLog
from penstock.cli.main import main
from penstock.cli.output import in_largest_units
from penstock.errors import PenstockError
from penstock.run.checkpoint import lock
from penstock.run.positions import moment
from penstock.state.stores import stores

TIME = "2026-11-20T10:00:00Z"
MICROS = 1_795_168_800_000_000
CDC: dict[str, object] = {"generation": 7, "time": MICROS, "planned": MICROS + 5, "log": "an-id", "ttl": 60}
KAFKA: dict[str, object] = {"clicks": {"0": 12, "1": 7}, "id:a1": {}}
ORDERS = SourceIdentity("cdc", {"table": "shop.orders", "rows": "changes"}, "scylla-cdc")
CLICKS = SourceIdentity("kafka", {"topic": "clicks"}, "penstock-kafka-topic")
SPARKS = SourceIdentity("kafka", {"topic": "clicks"}, "kafka")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pipeline with a query, a pipeline with two, and a checkpoint of an older build."""
    made(tmp_path / "orders", [CDC], ORDERS)
    made(tmp_path / "shop" / "clicks", [KAFKA], CLICKS)
    made(tmp_path / "shop" / "joined", [KAFKA, CDC], CLICKS, ORDERS)
    made(tmp_path / "old", [CDC])
    return tmp_path


def made(folder: Path, offsets: list[dict[str, object]], *sources: SourceIdentity, committed: int = 1) -> None:
    """Two batches, the last one with these offsets."""
    write_batches(folder, [[json.dumps(one) for one in offsets]] * 2, committed=committed)
    if sources:
        keep(Local(folder), CheckpointIdentity(sources, (SinkTarget("kafka", "topic out"),)))


def run(root: Path, *words: str) -> int:
    return main(["checkpoints", *words, "--checkpoints", str(root)])


def offsets(folder: Path) -> list[object]:
    log = CheckpointLog(Local(folder))
    log.check()
    assert log.committed[-1] == log.last
    return [json.loads(line) for line in log.batch(log.last).offsets]


def test_all_checkpoints_are_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lock(root / "orders"):
        assert run(root, "list") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "AGE", "BATCH", "POSITION", "LAG", "READS", "WRITES", "RUN"]
    rows = {line.split()[0]: line for line in lines}
    assert rows.keys() == {"orders", "shop/clicks", "shop/joined", "old"}
    assert "2026-11-20T10:00:00.000Z" in rows["orders"] and "cdc rows changes table shop.orders" in rows["orders"]
    assert "kafka topic out" in rows["orders"] and "pid" in rows["orders"]
    assert "0: 12, 1: 7 " in rows["shop/clicks"] and rows["shop/clicks"].endswith("-")
    assert "0: 12, 1: 7; 2026-11-20T10:00:00.000Z" in rows["shop/joined"]


def test_all_of_one_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "show", "orders") == 0
    said = capsys.readouterr().out
    for part in (
        "an-id",
        "last batch   1, planned 2026-",
        "no run",
        "position   2026-11-20T10:00:00.000Z",
        json.dumps(CDC),
    ):
        assert part in said
    assert run(root, "show", "shop/joined", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["query"], found["batch"], found["held_by"]) == ("shop/joined", "an-id", 1, None)
    assert [one["offset"] for one in found["sources"]] == [KAFKA, CDC]
    assert found["sources"][0]["lag_seconds"] is None and found["sources"][1]["lag_seconds"] > 0


def test_a_damaged_checkpoint_is_shown_with_what_is_wrong(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "orders" / "commits" / "1").unlink()
    (root / "orders" / "offsets" / "1").write_text("")
    assert run(root, "list") == 0
    said = capsys.readouterr()
    assert "damaged  2026-11-20T10:00:00.000Z" in said.out and "offsets/1 is empty" in said.err
    assert run(root, "set", "orders", "--to", "earliest") == 0
    assert offsets(root / "orders") == [{"generation": 0, "time": 0, "planned": 0, "seek": "earliest"}]


@pytest.mark.parametrize(
    ("name", "to", "expected"),
    [
        ("orders", TIME, [{"generation": 0, "time": MICROS, "planned": 0, "seek": "time"}]),
        ("old", "2026-11-20T12:00:00+02:00", [{"generation": 0, "time": MICROS, "planned": 0, "seek": "time"}]),
        ("shop/clicks", TIME, [{"clicks": {}, f"time:{MICROS // 1000}": {}}]),
        ("shop/clicks", "2026-11-20T10:00:00.0001", [{"clicks": {}, f"time:{MICROS // 1000 + 1}": {}}]),
        (
            "shop/joined",
            "earliest",
            [{"clicks": {}, "time:-2": {}}, {"generation": 0, "time": 0, "planned": 0, "seek": "earliest"}],
        ),
    ],
)
def test_a_position_is_set_by_a_batch_that_is_done(
    root: Path, name: str, to: str, expected: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    before = offsets(root / name)
    assert run(root, "set", name, "--to", to, "--dry-run") == 0
    assert "Would write a finished batch, 2" in capsys.readouterr().out and offsets(root / name) == before
    assert run(root, "set", name, "--to", to) == 0
    said = capsys.readouterr().out
    assert "Wrote a finished batch, 2" in said and "continues from " in said
    assert offsets(root / name) == expected


def test_a_batch_in_flight_is_given_up_when_a_position_is_set(root: Path) -> None:
    (root / "orders" / "commits" / "1").unlink()
    assert run(root, "set", "orders", "--to", TIME) == 0
    assert CheckpointLog(Local(root / "orders")).committed == [0, 2]


def test_state_is_kept_only_if_asked_for(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "orders" / "state" / "0").mkdir(parents=True)
    assert run(root, "set", "orders", "--to", TIME) == 1
    assert "the query keeps state" in capsys.readouterr().err
    assert run(root, "set", "orders", "--to", TIME, "--keep-state") == 0
    # State is stored by batch number: the last batch stays the last.
    assert "Wrote the offsets of batch 1" in capsys.readouterr().out
    assert offsets(root / "orders") == [{"generation": 0, "time": MICROS, "planned": 0, "seek": "time"}]
    assert json.dumps(CDC) in (root / "orders" / "offsets" / ".1.before").read_text()
    (root / "orders" / "commits" / "1").unlink()
    assert run(root, "set", "orders", "--to", TIME, "--keep-state") == 1
    assert "batch 1 is not finished" in capsys.readouterr().err


def test_a_reset_moves_aside_and_deletes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "reset", "orders") == 1
    assert "penstock checkpoints reset orders --yes" in capsys.readouterr().err and (root / "orders").exists()
    assert run(root, "reset", "shop", "--yes") == 0
    (aside,) = (root / ".reset").iterdir()
    said = capsys.readouterr().out
    assert f"shop is now {aside}; nothing was deleted" in said and "new query id" in said
    assert not (root / "shop").exists() and offsets(aside / "clicks") == [KAFKA]
    assert run(root, "list") == 0
    assert "shop" not in capsys.readouterr().out.replace("shop.orders", "")


def test_the_state_of_a_checkpoint_that_was_reset_is_not_listed(root: Path) -> None:
    (root / "orders" / "state" / "0").mkdir(parents=True)
    with pytest.raises(PenstockError, match="no description of the state"):
        stores(root)
    assert run(root, "reset", "orders", "--yes") == 0
    assert stores(root) == []


def test_another_query_may_take_over(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "adopt", "orders") == 0
    assert "continues from its position" in capsys.readouterr().out
    keep(Local(root / "orders"), CheckpointIdentity((ORDERS,), (SinkTarget("files", "/data"),)))
    assert (root / "orders" / FILE).exists() and offsets(root / "orders") == [CDC]
    assert run(root, "adopt", "old") == 0
    assert "has no record of its sources and sinks" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("set", "orders", "--to", TIME), ("reset", "orders", "--yes"), ("adopt", "orders")])
def test_nothing_is_changed_while_a_run_holds_it(
    root: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with lock(root / "orders"):
        assert run(root, *words) == 1
    assert "already runs this pipeline" in capsys.readouterr().err and offsets(root / "orders") == [CDC]


def test_a_query_of_several_is_held_by_its_pipeline(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lock(root / "shop"):
        assert run(root, "set", "shop/clicks", "--to", TIME) == 1
        # The name in errors of this query.
        assert run(root / "shop", "set", "clicks", "--to", TIME) == 1
    assert capsys.readouterr().err.count("already runs this pipeline") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nothing"), "there is no checkpoint 'nothing' .*choose from: old, orders, shop/clicks, shop/joined"),
        (("show", "../x"), "there is no checkpoint '../x'"),
        (("set", "shop", "--to", TIME), "shop has several queries .*choose one: shop/clicks, shop/joined"),
        (("set", "orders", "--to", "yesterday"), "'yesterday' is not a time"),
        (("set", "orders", "--to", "-2 apples"), "'-2 apples' is not a time"),
        (("set", "orders", "--to", "2999-01-01"), "2999-01-01 is in the future"),
        (("set", "orders", "--to", "0001-01-01"), "0001-01-01 is before 1970"),
    ],
)
def test_bad_input_is_told(root: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, *words) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(err)


@pytest.mark.parametrize(
    ("offset", "sources", "said"),
    [
        (KAFKA, (SPARKS,), "Spark's own Kafka reader has no times"),
        ({"clicks": {"0": 1}}, (), "does not say yet which reader reads the topic"),
        ({"logOffset": 3}, (SourceIdentity("text", {"path": "/in"}, "text"),), "the source text path /in has no times"),
        ({"logOffset": 3}, (), "the source of an older build has no times"),
    ],
)
def test_a_source_that_cannot_be_set_is_told(
    tmp_path: Path,
    offset: dict[str, object],
    sources: tuple[SourceIdentity, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made(tmp_path / "one", [offset], *sources)
    assert run(tmp_path, "set", "one", "--to", TIME) == 1
    assert said in capsys.readouterr().err and offsets(tmp_path / "one") == [offset]


def test_a_folder_without_checkpoints_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "nowhere", "list") == 1
    assert "there is no folder" in capsys.readouterr().err
    assert run(tmp_path, "show", "orders") == 1
    assert "this folder has no checkpoint" in capsys.readouterr().err


def test_times_are_read_as_written() -> None:
    now = datetime.now(UTC)
    assert moment("earliest") is None
    assert moment(TIME) == datetime(2026, 11, 20, 10, tzinfo=UTC)
    found = moment("-2 hours")
    assert found is not None and abs(found + timedelta(hours=2) - now) < timedelta(seconds=30)
    latest = moment("latest")
    assert latest is not None and latest >= now


def test_the_list_as_json_has_an_object_per_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "old" / "metadata").write_text("")
    assert run(root, "list", "--json") == 0
    said = capsys.readouterr()
    found = {row["name"]: row for row in map(json.loads, said.out.splitlines())}
    assert list(found) == ["old", "orders", "shop/clicks", "shop/joined"] and said.err == ""
    assert "metadata is empty" in found["old"]["problem"] and found["orders"]["problem"] is None
    assert found["orders"]["sources"] == [
        {
            "source": "cdc rows changes table shop.orders",
            "position": "2026-11-20T10:00:00.000Z",
            "lag_seconds": found["orders"]["sources"][0]["lag_seconds"],
            "offset": CDC,
        }
    ]
    assert (found["old"]["sinks"], found["orders"]["sinks"]) == (None, ["kafka topic out"])


def test_an_empty_folder_has_a_list_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "list") == 0
    assert capsys.readouterr().out == "NAME  AGE  BATCH  POSITION  LAG  READS  WRITES  RUN\n"
    assert run(tmp_path, "list", "--json") == 0
    assert capsys.readouterr().out == ""


def test_a_batch_in_flight_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "orders" / "commits" / "1").unlink()
    (root / "orders" / "state" / "0").mkdir(parents=True)
    assert run(root, "show", "orders") == 0
    said = capsys.readouterr().out
    assert "in flight    batch 1: the next start runs it again\n" in said
    assert "last batch   0, planned 2026-" in said
    assert "state        yes: windows, tables or counts\n" in said


def test_a_checkpoint_before_its_first_batch_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new").mkdir()
    keep(Local(tmp_path / "new"), CheckpointIdentity((ORDERS,), ()))
    assert run(tmp_path, "show", "new") == 0
    said = capsys.readouterr().out
    for line in ("query        unknown", "last batch   none is finished", "  position   none yet", "  offset     -"):
        assert f"{line}\n" in said
    assert run(tmp_path, "set", "new", "--to", TIME) == 1
    assert "it has no batch yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=59.9), "59s"),
        (timedelta(seconds=60), "1m 0s"),
        (timedelta(minutes=59, seconds=59), "59m 59s"),
        (timedelta(hours=1, minutes=1, seconds=59), "1h 1m"),
        (timedelta(hours=23, minutes=59), "23h 59m"),
        (timedelta(days=1), "1d 0h"),
        (timedelta(days=400, hours=23, minutes=59), "400d 23h"),
    ],
)
def test_a_duration_has_its_two_largest_units(span: timedelta, text: str) -> None:
    assert in_largest_units(span) == text


@pytest.mark.parametrize(
    ("answer", "moved"), [("yes", True), (" YES ", True), ("y", False), ("", False), ("no", False)]
)
def test_a_reset_on_a_terminal_asks(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, moved: bool
) -> None:
    asked = []

    def reply(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)
    assert run(root, "reset", "orders") == (0 if moved else 1)
    assert asked == ["Move the checkpoint orders aside, so that its pipeline starts from scratch? Type yes: "]
    assert (root / "orders").exists() is not moved
    assert moved or capsys.readouterr().err == "penstock: nothing was changed (checkpoint orders)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "orders"), "the following arguments are required: --to"),
        (("set", "--to", TIME), "the following arguments are required: NAME"),
        (("show",), "the following arguments are required: NAME"),
        (("reset",), "the following arguments are required: NAME"),
        (("list", "--yes"), "unrecognized arguments: --yes"),
        (("adopt", "orders", "--json"), "unrecognized arguments: --json"),
    ],
)
def test_wrong_usage_changes_nothing(
    root: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(root, *words)
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert offsets(root / "orders") == [CDC] and not (root / ".reset").exists()
