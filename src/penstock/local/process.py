"""Server processes that outlive their starter: each has its own session, and is identified by pid and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

POLL = 0.05


@dataclass(frozen=True)
class Process:
    """A process and its start time: another program may get the same pid later.

    `ends_by` is the signal that ends it cleanly.
    """

    pid: int
    started: str
    ends_by: int = signal.SIGTERM

    def alive(self) -> bool:
        return _started(self.pid) == self.started

    def memory(self) -> int | None:
        """Resident bytes; None if unknown (known on Linux)."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return None


def start(command: list[str], log: Path, environment: Mapping[str, str], ends_by: int = signal.SIGTERM) -> Process:
    """Run a command with its output in `log`; the terminal's Ctrl-C does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.rename(log.with_suffix(log.suffix + ".1"))
    output = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    errors = (os.POSIX_SPAWN_DUP2, 1, 2)
    actions = [nothing, output, errors]
    pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True, setsigmask=[])
    return Process(pid, _started(pid) or "", ends_by)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM, so that every started process is also recorded."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop(processes: Iterable[Process], patience: float) -> None:
    """End processes: send each its signal, and SIGKILL to any that still runs after `patience` seconds."""
    running = [process for process in processes if process.alive()]
    for process in running:
        _signal(process, process.ends_by)
    deadline = time.monotonic() + patience
    while running and time.monotonic() < deadline:
        time.sleep(POLL)
        running = [process for process in running if process.alive()]
    for process in running:
        _signal(process, signal.SIGKILL)
    while any(process.alive() for process in running):
        time.sleep(POLL)


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, without the frames of stack traces."""
    if not log.exists():
        return ""
    shown = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
    return "\n".join(line[:400] for line in shown[-lines:])


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        if process.alive():
            os.kill(process.pid, number)


def _started(pid: int) -> str | None:
    """The start time of a running process in the system's own format; None if it does not run."""
    state, started = _linux_state(pid) if Path("/proc/self").exists() else _state(pid)
    if state[:1] in ("Z", "X"):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # reap it if it is an ended child of this process
        return None
    return started or None


def _linux_state(pid: int) -> tuple[str, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _state(pid: int) -> tuple[str, str]:
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    state, _, started = subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition(" ")
    return state, started.strip()
