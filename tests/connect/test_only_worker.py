"""Workers on their own with one topic: only the first runs its connectors, and the others say why they do not."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from connect_memory import Memory
from waiting import PATIENCE, until
from worker_process import properties, worker

from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.only_worker import OnlyWorker
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.wire.errors import GroupAuthorizationFailed
from penstock.wire.group_member import Membership


def test_a_second_worker_of_a_topic_does_not_start(services: Services, tmp_path: Path) -> None:
    spark: Any = None
    topic = f"alone-{uuid.uuid4().hex[:8]}"

    def made(address: str) -> OnlyWorker:
        return OnlyWorker(services.kafka, topic, address, {})

    def begin(only: OnlyWorker, address: str) -> StandaloneHerder:
        started = StandaloneHerder(WorkerContext(spark, services.kafka, tmp_path), Memory(), address, only)
        started.start()
        return started

    with made("first:1") as only:
        first = begin(only, "first:1")
        with (
            made("second:2") as other,
            pytest.raises(PenstockError, match=rf"first:1 already runs .* of topic {topic}"),
        ):
            begin(other, "second:2")
        first.require()
        # Another topic is another matter.
        with OnlyWorker(services.kafka, f"{topic}-b", "third:3", {}) as other:
            begin(other, "third:3")
    # The first has left.
    with made("fourth:4") as only:
        begin(only, "fourth:4").require()


def test_a_worker_that_others_took_for_dead_ends_the_one_that_came_after_it(services: Services) -> None:
    topic = f"alone-{uuid.uuid4().hex[:8]}"
    older, newer = (OnlyWorker(services.kafka, topic, address, {}) for address in ("older:1", "newer:2"))
    with newer:
        newer.begin()
        with older:
            older.begin()

            def ends() -> bool:
                try:
                    newer.require()
                except PenstockError as error:
                    return "older:1 already runs" in str(error)
                return False

            until(ends, "end of the newer worker")
            older.require()


def test_a_group_that_this_user_may_not_join_is_a_warning(
    services: Services, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(member: Membership) -> None:
        raise GroupAuthorizationFailed("group x")

    monkeypatch.setattr(Membership, "run", refused)
    with OnlyWorker(services.kafka, "t", "a:1", {}) as only:
        only.begin()
    (message,) = caplog.messages
    assert "it is not known whether another worker runs the connectors of topic t" in message
    assert "not allowed in this group" in message


def test_a_worker_that_ends_at_once_does_not_wait_for_brokers() -> None:
    def begin_and_end() -> None:
        for _ in range(20):
            with OnlyWorker("127.0.0.1:1", "t", "a:1", {}):
                pass

    thread = Thread(target=begin_and_end, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_second_process_with_another_folder_says_which_worker_runs(services: Services, tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text(properties(services.kafka))
    with worker(file, tmp_path / "one") as (_, url):
        command = [sys.executable, "-m", "penstock", "connect", str(file), "--data", str(tmp_path / "two")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert f"the worker at {url.removeprefix('http://')} already runs the connectors of topic configs-" in done.stderr
    assert "give both workers a group.id" in done.stderr
