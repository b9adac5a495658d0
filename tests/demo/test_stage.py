"""The stage of both demos with small processes as parts: order, breaks, faults, and that nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from rich.console import Console
from waiting import PATIENCE, until

from penstock.errors import PenstockError
from penstock.local.process import POLL
from penstock.run.checkpoint import lock
from penstock_demo import child, parts, stage, verdict, view, watch
from penstock_demo.parts import Cpu, LoadStatus, Part, kept, stop_kept
from penstock_demo.run import Demo
from penstock_demo.stage import Interrupted, Options, Rates, Stage, staged
from penstock_demo.view import Board, View

LOAD = """
import sys, time
from penstock_demo.parts import LoadStatus, commands

told = commands()
status = LoadStatus()
while not told.stop.is_set():
    status.going = told.go.is_set() and told.rate == "10"
    status.seconds += 0.5 * status.going
    status.finished = status.seconds >= 5
    status.report()
    if status.finished or "--fail" in sys.argv and status.going:
        break
    time.sleep(0.005)
sys.exit("no more paper" if "--fail" in sys.argv else 0)
"""


class Records:
    """Stands for a consumer that has read one record."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.closed = False

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def recent(self, since: int) -> list[int]:
        return [1000]


class Sleeper(Part):
    """A part that sleeps, in place of `penstock run`."""

    batch = (3, 0.5)

    def __init__(self, log: Path) -> None:
        super().__init__("pipeline", ["--version"], {}, log, stay=False, patience=5)

    def _start(self) -> subprocess.Popen[bytes]:
        self._command = ["sleep", "600"]
        return super()._start()

    def kill_worker(self) -> None:
        self.worker_killed = True


class Toy(Stage[LoadStatus, dict[str, Any]]):
    """A demo whose servers and pipeline are small processes."""

    load_module, load_status = "toy_load", LoadStatus
    also = ("postgres",)
    _pipeline: Any

    def __init__(self, root: Path, stack: ExitStack, *broken: str, fails: bool = False) -> None:
        self.said = io.StringIO()
        shown = View(Console(file=self.said, width=500), None)
        super().__init__(Options(root, 5.0, "10", broken, keep=False), shown, Board(), stack)
        self._fails, self.steps = fails, list[str]()

    def _phase(self, phase: str, **shown: str) -> None:
        self.steps.append(phase)
        super()._phase(phase, **shown)

    def _serve(self) -> Any:
        self._server = subprocess.Popen(["sleep", "600"])
        self._stack.callback(self._server.wait)
        self._stack.callback(self._server.kill)
        return SimpleNamespace(kafka="k:1", cql="c:1", postgres="p:1", pids={"kafka": self._server.pid})

    def _create(self) -> None:
        self.steps.append("created")

    def _open_console(self) -> None:
        self.steps.append("console")

    def _read(self) -> Any:
        return Records()

    def _pipe(self) -> Any:
        return Sleeper(self._root / "pipeline.log")

    def _await_parts(self) -> None:
        self.steps.append("awaited")

    def _load_arguments(self) -> list[str]:
        return [*super()._load_arguments(), *(["--fail"] if self._fails else [])]

    def _first(self) -> bool:
        return True

    def _before_load(self) -> None:
        self.steps.append("before the load")

    def _drain(self) -> None:
        self.steps.append("drained")

    def _counts(self, status: LoadStatus) -> tuple[int, int, int]:
        return 10, 7, 3

    def _judge(self, cpu: dict[str, float]) -> dict[str, Any]:
        return {"cpu": cpu, "lag": self._lag}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a demo, beside the module of its load."""
    (tmp_path / "toy_load.py").write_text(LOAD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xint")
    monkeypatch.setattr(stage, "TURN", 0.005)
    return tmp_path / "root"


def test_a_run_has_its_steps_in_order(root: Path) -> None:
    with ExitStack() as stack:
        toy = Toy(root, stack)
        found = toy.run()
        pids = [toy._pipeline.pid, toy._server.pid, toy._load._process.pid]
    assert toy.steps == [
        "starting",
        "creating tables and topics",
        "created",
        "console",
        "starting the pipeline",
        "awaited",
        "warming up",
        "before the load",
        "running",
        "waiting for the last events",
        "drained",
        "comparing every write with every event",
    ]
    assert found["lag"] == 3 and found["cpu"].keys() == {"kafka", "load", "spark", "workers", "demo"}
    assert toy._board.parts["postgres"] == "p:1" and toy._board.parts["load"] == "done"
    assert not {one.pid for one in child.listed()}.intersection(pids) and toy._reader.closed  # type: ignore[attr-defined]


def test_what_an_earlier_run_left_is_deleted_but_not_other_files(root: Path) -> None:
    (root / "checkpoints" / "changes" / "offsets").mkdir(parents=True)
    (root / "pipeline.log").write_text("old")
    (root / "journal.jsonl").write_text("kept until the load starts")
    with ExitStack() as stack:
        Toy(root, stack)._prepare()
    assert sorted(path.name for path in root.iterdir()) == ["journal.jsonl"]
    assert os.environ["JDK_JAVA_OPTIONS"] == "-Xint"


def test_parts_are_broken_one_after_the_other_and_started_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def up(root: Path, *, only: list[str]) -> Any:
        started.extend(only)
        return SimpleNamespace(kafka="k:2", cql="c:1", postgres="p:1", pids={"kafka": toy._pipeline.pid})

    monkeypatch.setattr("penstock.local.services.up", up)
    with ExitStack() as stack:
        toy = Toy(root, stack, "spark", "kafka", "worker")
        toy.run()
        assert toy._server.wait(PATIENCE) == -signal.SIGKILL
    assert started == ["kafka"] and toy._running.kafka == "k:2" and toy._pipeline.worker_killed
    running = toy.steps[toy.steps.index("running") + 1 : toy.steps.index("waiting for the last events")]
    after = "running after the break"
    assert running == ["killing spark", after, "killing kafka", after, "killing worker", after]
    killed = [line for line in toy.said.getvalue().splitlines() if line.startswith("killed")]
    assert killed == [f"killed {part} with kill -9" for part in ("spark", "kafka", "worker")]
    assert len(toy._breaks) == 3 and toy._breaks == sorted(toy._breaks)


def test_a_load_that_fails_ends_the_demo_with_its_last_words(root: Path) -> None:
    with (
        ExitStack() as stack,
        pytest.raises(PenstockError, match=r"(?s)the load ended by itself with code 1.*no more paper"),
    ):
        Toy(root, stack, fails=True).run()


def test_a_part_that_ends_by_itself_ends_the_demo(root: Path) -> None:
    class Short(Toy):
        def _before_load(self) -> None:
            os.kill(self._pipeline.pid, signal.SIGKILL)

    with ExitStack() as stack, pytest.raises(PenstockError, match=r"the pipeline ended by itself with code -9"):
        Short(root, stack).run()


def test_a_consumer_that_fails_ends_the_demo(root: Path) -> None:
    class Deaf(Toy):
        def _before_load(self) -> None:
            self._reader.fault = ValueError("cannot read")

    with ExitStack() as stack, pytest.raises(PenstockError, match=r"the consumer ended: cannot read \(.*root\)"):
        Deaf(root, stack).run()


def test_a_step_without_end_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PATIENCE", 0.01)

    class Cold(Toy):
        start = 0.0

        def _first(self) -> bool:
            return False

    with (
        ExitStack() as stack,
        pytest.raises(PenstockError, match=r"the first events did not arrive in time \(.*root\)"),
    ):
        Cold(root, stack).run()


def test_everything_is_stopped_in_reverse_order_also_after_an_error() -> None:
    ended: list[int] = []
    before = signal.getsignal(signal.SIGTERM)

    def run(stack: ExitStack) -> None:
        for number in range(3):
            stack.callback(ended.append, number)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        staged(run, keep=True)
    assert ended == [2, 1, 0] and signal.getsignal(signal.SIGTERM) is before


def test_what_is_kept_is_not_stopped() -> None:
    ended: list[int] = []

    def run(stack: ExitStack) -> str:
        stack.callback(ended.append, 1)
        return "done"

    assert staged(run, keep=True) == "done" and ended == []
    assert staged(run, keep=False) == "done" and ended == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_interrupts_once_and_not_the_cleanup(number: signal.Signals) -> None:
    cleaned: list[bool] = []

    def clean() -> None:
        os.kill(os.getpid(), number)
        cleaned.append(True)

    def run(stack: ExitStack) -> None:
        stack.callback(clean)
        os.kill(os.getpid(), number)
        signal.pause()

    with pytest.raises(Interrupted):
        staged(run, keep=False)
    assert cleaned == [True]


def test_a_short_run_has_a_short_warm_up(root: Path) -> None:
    with ExitStack() as stack:
        toy = Toy(root, stack)
        assert toy._longest_warm_up == 10
        toy.run()
    assert "warming up for at most 10 s after the first events: Spark compiles its code" in toy.said.getvalue()


def test_the_cpu_of_parts_is_shown_while_they_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "CPU_EVERY", 0.0)
    monkeypatch.setattr(view, "PLAIN_EVERY", 0.0)

    class Looking(Toy):
        def _run_load(self) -> None:
            self._turn()  # the load may be over before the first look
            super()._run_load()

    with ExitStack() as stack:
        toy = Looking(root, stack)
        toy.run()
    assert re.search(rf"CPU \d+\.\d of {view.cores()} cores \(\w+ ", toy.said.getvalue())


class Machine(Demo):
    """A machine that writes at most `most` per second, and whose events come at most at `read`."""

    def __init__(self, most: float, read: float, stack: ExitStack, rate: str = "auto") -> None:
        self.said = io.StringIO()
        shown = View(Console(file=self.said, width=500), None)
        super().__init__(Options(Path(), 5.0, rate, (), keep=False), shown, stack)
        self.most, self.read, self.paces = most, read, list[float]()
        self._loading = SimpleNamespace(pace=lambda rate: self.paces.append(float(rate)))  # type: ignore[assignment]

    def _pass_time(self, seconds: float) -> None:
        asked = self.paces[-1]
        self._board.writes_per_s = min(asked, self.most)
        self._board.events_per_s = min(asked, self.most, self.read)
        self._board.delay_p50 = 1.0 if asked <= self.read else 9.0


@pytest.mark.parametrize(
    ("most", "read", "tried", "chosen"),
    [
        (1300, 5000, [250, 500, 1000, 2000], "1040"),
        (5000, 700, [250, 500, 1000], "400"),
        (100, 100, [250], "100"),
        (1e9, 1e9, [250, 500, 1000, 2000, 4000, 8000], "6400"),
    ],
)
def test_a_rate_is_found_that_the_machine_holds(most: float, read: float, tried: list[int], chosen: str) -> None:
    with ExitStack() as stack:
        machine = Machine(most, read, stack)
        assert machine._chosen_rate() == chosen
    assert machine.paces == [*tried, float(chosen)]
    assert f"{chosen} writes/s are 80% of what this machine holds" in machine.said.getvalue()


def test_the_users_rate_is_not_tried() -> None:
    with ExitStack() as stack:
        machine = Machine(100, 100, stack, rate="3000")
        assert machine._chosen_rate() == "3000" and machine.paces == []


def test_a_verdict_says_what_is_slow_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "cores", lambda: 2)
    monkeypatch.setattr(view, "cores", lambda: 2)
    used = {"spark": 4.0, "cassandra": 12.0, "kafka": 2.0, "load": 1.5}
    assert list(verdict.slow(used, 10.0, 1200.0, 3000.0)) == [
        "CPU while the load ran: 1.9 of 2 cores (cassandra 1.2, spark 0.4, kafka 0.2)",
        "1200 of the 3000 asked for per second were done.",
        "The cores are the limit: cassandra has 62% of the CPU. "
        "On a machine with more, or at a lower --rate, delays are shorter.",
    ]
    assert list(verdict.slow({"spark": 1.0}, 10.0, 99.0, 100.0)) == [
        "CPU while the load ran: 0.1 of 2 cores (spark 0.1)"
    ]
    assert len(list(verdict.slow(used, 100.0, 1200.0, None))) == 1


def test_rates_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"at": 0.0}
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: now["at"]))
    rates = Rates()
    assert rates.of(0, 0) == [0.0, 0.0]
    for second in range(1, 10):
        now["at"] = float(second)
        found = rates.of(second * 10, 5 if second > 8 else 0)
    assert found == [10.0, 5 / 3]


def test_lines_are_shown_for_a_new_phase_and_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"at": 1000.0}
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: now["at"]))
    said = io.StringIO()
    with view.view(Console(file=said, width=40)) as shown:
        board = Board(phase="starting", names=("posted", "matched", ""))
        for _ in range(3):
            shown.show(board)
        now["at"] += view.PLAIN_EVERY
        board.batch, board.elapsed = (5, 1.25), 5.0
        shown.show(board)
        board.phase = "[bold]"
        shown.show(board)
    lines = said.getvalue().splitlines()
    assert lines[0] == (
        "   0.0 s  starting: 0 posted/s, 0 matched/s, delay P50 0.00 s P99 0.00 s, lag 0, batch none yet"
    )
    assert lines[1].endswith("batch 5 rows in 1.25 s") and len(lines) == 3 and "  [bold]: " in lines[2]


def test_a_terminal_has_a_table_in_place() -> None:
    said = io.StringIO()
    with view.view(Console(file=said, force_terminal=True, width=100)) as shown:
        shown.show(Board(phase="running", writes=12_345, parts={"pipeline": "pid 7"}, retries=2))
        shown.say("killed kafka")
    text = said.getvalue()
    assert "penstock demo: running" in text and "12345" in text and "pid 7" in text and "sent again" in text
    assert "killed kafka" in text


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child and a grandchild that ignores SIGTERM."""
    script = "trap '' TERM; (trap '' TERM; sleep 600 & wait) & wait"
    with (tmp_path / "log").open("wb") as log:
        process = child.start(["sh", "-c", script], {}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    until(lambda: len(child.below(process.pid)) == 2, "grandchild")
    yield process
    child.kill(process)


@pytest.mark.parametrize("end", [child.kill, lambda process: child.stop(process, 0.05)], ids=["kill", "stop"])
def test_a_process_ends_with_all_below_it(
    family: subprocess.Popen[bytes], end: Callable[[subprocess.Popen[bytes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {one.pid for one in child.below(family.pid)}
    end(family)
    assert family.poll() is not None
    assert not tree & {one.pid for one in child.listed()}


def test_a_process_that_may_not_stay_ends_with_its_starter(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
from penstock_demo import child
log = open({str(tmp_path / "log")!r}, "wb")
ended = child.start(["sleep", "600"], {{}}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
stays = child.start(["sleep", "600"], {{}}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, stay=True)
print(ended.pid, stays.pid, flush=True)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ended, stays = map(int, answer.stdout.split())
    try:
        until(lambda: ended not in {one.pid for one in child.listed()}, "end of the process")
        assert stays in {one.pid for one in child.listed()}
    finally:
        os.kill(stays, signal.SIGKILL)


def test_listed_processes_have_their_cpu_time() -> None:
    mine = next(one for one in child.listed() if one.pid == os.getpid())
    assert mine.cpu == pytest.approx(time.process_time(), rel=0.5, abs=0.5) and mine.parent == os.getppid()


def test_a_password_is_not_shown() -> None:
    assert stage._place("postgresql://postgres:secret@127.0.0.1:5432/postgres") == "127.0.0.1:5432"
    assert stage._place("p:1") == "p:1"


def test_cpu_of_a_part_that_was_started_again_counts_from_zero() -> None:
    before, now = Cpu({"kafka": 5.0, "spark": 9.0}), Cpu({"kafka": 7.5, "spark": 1.5, "load": 2.04})
    assert now.since(before) == {"kafka": 2.5, "spark": 1.5, "load": 2.0}


def test_nothing_is_kept_where_nothing_ran(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "changes.lock").write_text(json.dumps({"pid": 1 << 30}))
    assert kept(tmp_path) == []
    stop_kept(tmp_path)


def test_what_holds_a_checkpoint_is_kept_and_is_asked_to_stop(tmp_path: Path) -> None:
    code = f"""
import signal
from pathlib import Path
from penstock.run.checkpoint import lock
with lock(Path({str(tmp_path / "checkpoints" / "changes")!r})):
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code]) as holder:
        assert until(lambda: kept(tmp_path), "lock") == [("pipeline", holder.pid)]
        stop_kept(tmp_path)
        assert holder.wait(PATIENCE) == -signal.SIGTERM


def test_what_does_not_stop_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PATIENCE", POLL)
    monkeypatch.setattr("os.kill", lambda pid, number: None)
    with lock(tmp_path / "checkpoints" / "adtech"), pytest.raises(PenstockError) as raised:
        stop_kept(tmp_path)
    assert str(raised.value) == (
        f"the pipeline of an earlier demo does not stop (pid {os.getpid()}) ({tmp_path}). "
        f"Next: end it with: kill -9 {os.getpid()}"
    )


@dataclass
class Message:
    """A record, or what the client reports in its place."""

    value: bytes = b""
    code: int | None = None

    def error(self) -> Any:
        return None if self.code is None else KafkaError(self.code)


@dataclass
class Client:
    """Stands for Kafka's client: it has some messages, then nothing."""

    messages: list[Message]
    closed: bool = False
    polled: int = 0
    taken: list[Any] = field(default_factory=list)

    def consume(self, most: int, wait: float) -> list[Message]:
        self.polled += 1
        found, self.messages = self.messages, []
        return found

    def close(self) -> None:
        self.closed = True


class Taking(watch.TopicWatch):
    def _take(self, message: Any, now: int) -> None:
        if message.value == b"bad":
            raise ValueError("cannot be taken")
        self._timed(now - 2_000_000, now)

    def _reached_end(self, message: Any) -> None:
        self._closing.set()


def watched(*messages: Message) -> tuple[Taking, Client]:
    client: Any = Client(list(messages))
    reading = Taking(client)
    reading.start()
    until(lambda: client.polled > 1 or not reading.is_alive(), "second poll")
    reading.close()
    assert client.closed
    return reading, client


def test_a_watch_measures_delays_and_ends_when_it_is_closed() -> None:
    reading, client = watched(Message(), Message())
    assert reading.fault is None and client.polled > 1
    assert reading.delays(0) == reading.recent(0) == [2_000_000, 2_000_000]
    assert reading.delays(time.time_ns()) == reading.recent(time.time_ns()) == []


@pytest.mark.parametrize("code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_records_that_are_gone_end_a_watch_with_a_fault(code: int) -> None:
    reading, _ = watched(Message(), Message(code=code), Message())
    assert isinstance(reading.fault, KafkaException) and len(reading.times) == 2


def test_a_broker_that_is_away_does_not_end_a_watch() -> None:
    reading, _ = watched(Message(code=KafkaError._ALL_BROKERS_DOWN), Message(), Message(code=KafkaError._PARTITION_EOF))
    assert reading.fault is None and len(reading.times) == 2


def test_a_record_that_cannot_be_taken_is_a_fault() -> None:
    reading, _ = watched(Message(b"bad"), Message())
    assert isinstance(reading.fault, ValueError) and len(reading.times) == 0
