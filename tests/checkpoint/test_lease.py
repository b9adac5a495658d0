"""The lease of a checkpoint: one holder, which loses it when it does not renew it, and a message for the others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

from penstock.checkpoint import lease as module
from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.hadoop_folder import Away
from penstock.checkpoint.lease import Lease, LeaseLost
from penstock.errors import PenstockError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT": 0.02, "LOOK": 0.02, "PATIENCE": 0.5, "VALID": PATIENCE}.items():
        monkeypatch.setattr(module, name, seconds)


def lease(folder: Path) -> Lease:
    return Lease(Local(folder / "orders.lease"), f"{folder}/orders")


def wait(seconds: float) -> bool:
    return threading.Event().wait(seconds)


def noted(folder: Path) -> dict[str, dict[str, Any]]:
    files = [path for path in (folder / "orders.lease").iterdir() if path.name.isdecimal()]
    return {path.name: json.loads(path.read_text()) for path in files}


def test_a_lease_that_was_released_is_taken_at_once(tmp_path: Path) -> None:
    for number in range(1, 4):
        one = lease(tmp_path)
        assert one.take(lambda seconds: pytest.fail("it must not wait"))
        with one.renewed():
            until(lambda: max(about["beat"] for about in noted(tmp_path).values()), "beat")
            one.require()
        (found,) = noted(tmp_path).items()
        assert found[0] == str(number) and found[1]["released"] is True


def test_a_lease_that_is_renewed_is_refused_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", PATIENCE)
    one = lease(tmp_path)
    assert one.take(wait)
    with one.renewed(), pytest.raises(PenstockError, match=r"process \d+ on \S+ already runs this pipeline .*/orders"):
        lease(tmp_path).take(wait)


def test_who_is_asked_to_stop_while_it_waits_does_not_take_it(tmp_path: Path) -> None:
    assert lease(tmp_path).take(wait)
    assert not lease(tmp_path).take(lambda seconds: True)
    assert [*noted(tmp_path)] == ["1"]


def test_a_lease_that_is_not_renewed_is_taken_and_its_holder_finds_out(
    tmp_path: Path,
) -> None:
    paused, other = lease(tmp_path), lease(tmp_path)
    assert paused.take(wait)
    began = time.monotonic()
    assert other.take(wait)
    assert time.monotonic() - began >= 0.5
    with other.renewed():
        with paused.renewed():
            until(lambda: paused._lost, "loss")
            with pytest.raises(LeaseLost, match=r"has lost the lease .*: process \d+ on \S+ took it .*runs elsewhere"):
                paused.require()
        # What it writes at its end does not touch the new holder's.
        assert [*noted(tmp_path)] == ["2"] and "released" not in noted(tmp_path)["2"]
        other.require()


def test_of_many_that_wait_one_takes_it(tmp_path: Path) -> None:
    assert lease(tmp_path).take(wait)
    taken, refused = list[bool](), list[str]()

    def want() -> None:
        try:
            taken.append(lease(tmp_path).take(wait))
        except PenstockError as error:
            refused.append(error.what)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [True] and len(refused) == 3 and all("already runs this pipeline" in text for text in refused)


class Failing(Local):
    """A file system that can be away."""

    def numbers(self, folder: str) -> list[int]:
        if (self.path.parent / "away").exists():
            raise Away("the checkpoint cannot be used: connection refused")
        return super().numbers(folder)


def test_a_lease_that_cannot_be_renewed_is_lost_before_another_may_take_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Lease(Failing(tmp_path / "orders.lease"), "orders")
    assert one.take(wait)
    with one.renewed():
        (tmp_path / "away").touch()
        until(lambda: "the lease of orders was not renewed: the checkpoint cannot" in caplog.text, "warning")
        (tmp_path / "away").unlink()
        beat = noted(tmp_path)["1"]["beat"]
        until(lambda: noted(tmp_path)["1"]["beat"] != beat, "beat")
        one.require()
        monkeypatch.setattr(module, "VALID", 0.3)
        (tmp_path / "away").touch()
        until(lambda: raised(one.require), "loss")
        with pytest.raises(LeaseLost, match=r"it could not be renewed for \d+ s"):
            one.require()
        # Once lost it stays lost.
        (tmp_path / "away").unlink()
        with pytest.raises(LeaseLost):
            one.require()


def raised(call: Callable[[], None]) -> bool:
    try:
        call()
    except LeaseLost:
        return True
    return False


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0"])
def test_a_file_that_cannot_be_read_is_waited_for(tmp_path: Path, text: str) -> None:
    Local(tmp_path / "orders.lease").write("7", text)
    assert lease(tmp_path).take(wait)
    assert [*noted(tmp_path)] == ["8"]
