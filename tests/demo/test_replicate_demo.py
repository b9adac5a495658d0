"""The demo of a replication: what its own comparison finds, what its verdict says, and whole runs with breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from keyspaces import new_keyspace
from waiting import patience

from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock_demo.replicate import both_sides
from penstock_demo.replicate.both_sides import PROBLEMS, Sides
from penstock_demo.replicate.run import Verification
from penstock_demo.replicate.verdict import Verdict

ROW = ({"v": 1, "tags": {"a"}}, {"v": 100}, {"v": 500})
OTHERS: dict[str, tuple[Any, Any]] = {
    "lost": (ROW, None),
    "extra": (None, ROW),
    "wrong": (ROW, ({"v": 1, "tags": {"b"}}, {"v": 100}, {"v": 500})),
    "misdated": (ROW, ({"v": 1, "tags": {"a"}}, {"v": 101}, {"v": 500})),
    "misdated by its ttl": (ROW, ({"v": 1, "tags": {"a"}}, {"v": 100}, {"v": 490})),
    "misdated without a ttl": (ROW, ({"v": 1, "tags": {"a"}}, {"v": 100}, {"v": None})),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_difference_is_counted_and_shown(name: str) -> None:
    source, target = OTHERS[name]
    found = Sides()
    rows = [{} if row is None else {(1,): row} for row in (source, target)]
    found.compare("orders", *rows)
    assert {problem: found.total(problem) for problem in PROBLEMS} == dict.fromkeys(PROBLEMS, 0) | {name.split()[0]: 1}
    assert [(one["problem"], one["table"], one["key"]) for one in found.examples] == [
        (name.split()[0], "orders", "(1,)")
    ]


def test_equal_rows_are_equal_though_their_ttl_goes_on() -> None:
    found = Sides()
    found.compare("orders", {(1,): ROW}, {(1,): (*ROW[:2], {"v": 498})})
    assert (found.rows.total(), found.examples) == (1, [])


def test_rows_are_read_from_both_keyspaces(cql: Any, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_keyspace(cql, "shop") as source, new_keyspace(cql, "copy") as target:
        monkeypatch.setattr(both_sides, "KEYSPACE", source)
        for keyspace in (source, target):
            columns = "id int, ck int, s int STATIC, v int, m map<text, int>, PRIMARY KEY (id, ck)"
            cql.execute(f"CREATE TABLE {keyspace}.t ({columns})")
            cql.execute(f"INSERT INTO {keyspace}.t (id, ck, s, v, m) VALUES (1, 1, 2, 3, {{'a': 1}}) USING TIMESTAMP 5")
            cql.execute(f"UPDATE {keyspace}.t USING TIMESTAMP 5 SET s = 9 WHERE id = 2")
        keys = {"t": ("id", "ck")}
        found = both_sides.compared(services.cql, services.cql, target, keys)
        assert (found.rows["t"], found.examples) == (2, [])
        cql.execute(f"UPDATE {target}.t USING TIMESTAMP 6 SET m['a'] = 2 WHERE id = 1 AND ck = 1")
        cql.execute(f"UPDATE {target}.t USING TIMESTAMP 6 SET s = 9 WHERE id = 2")
        found = both_sides.compared(services.cql, services.cql, target, keys)
        assert {problem: found.total(problem) for problem in PROBLEMS} == {
            "lost": 0,
            "extra": 0,
            "wrong": 1,
            "misdated": 1,
        }


GOOD = Verdict(
    writes=9,
    rows=5,
    lost=0,
    extra=0,
    wrong=0,
    misdated=0,
    tables={"shop.orders": "equal"},
    repaired=1,
    delay_p50_s=1,
    delay_p99_s=2,
    delay_max_s=3,
    rate_per_s=1,
    seconds=1,
    retries=0,
    cpu_s={},
    asked_per_s=1,
)


def test_all_must_be_equal_and_the_added_row_found() -> None:
    assert GOOD.ok
    bad: list[dict[str, Any]] = [{name: 1} for name in PROBLEMS]
    bad += [{"repaired": 0}, {"tables": {"shop.orders": "undecided"}}]
    assert not any(replace(GOOD, **one).ok for one in bad)


def test_a_comparison_that_fails_is_told_with_its_log(tmp_path: Path, services: Services) -> None:
    verification = Verification(tmp_path, ["no.table", "--from", services.cql, "--to", services.cql])
    try:
        with pytest.raises(PenstockError, match=r"could not be compared; the log ends with\n[^$]*there is no table no"):
            assert verification.reports
    finally:
        verification.close()


RUNS = {
    "two nodes": ("--nodes", "2", "--break", "target", "--break", "cassandra", "--break", "alter"),
    "through kafka": ("--through-kafka", "--break", "kafka", "--break", "spark"),
    "a cluster": ("--cluster", "2", "--break", "worker", "--break", "spark"),
}


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_both_sides_are_equal_after_the_breaks(tmp_path: Path, name: str) -> None:
    words = ["demo", "replicate", "--root", "root", "--json", "told.json", "--seconds", "20", "--rate", "200"]
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *words, *RUNS[name]],
        cwd=tmp_path,
        env=os.environ | {"PENSTOCK_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=patience(600),
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert set(told["tables"].values()) == {"equal"} and told["rows"] > 500 and told["writes"] > 2000
