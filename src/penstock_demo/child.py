"""Processes that end with the demo, however it ends, and the process trees below them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from penstock.local.process import POLL

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Listed(NamedTuple):
    """A process in the system's list; `cpu` is in seconds."""

    pid: int
    parent: int
    cpu: float
    command: str

    @property
    def name(self) -> str:
        """The name that it gives itself; empty if it has ended."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text().strip()
        except OSError:
            return ""


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: int | IO[bytes],
    stderr: IO[bytes],
    stay: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that the terminal's Ctrl-C does not reach; unless it may `stay`, it gets SIGTERM when we die.

    Call it from the main thread only: on Linux the signal comes when the calling thread ends.
    """

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if _LIBC is not None and not stay:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **environment},
        start_new_session=True,
        preexec_fn=prepare,
    )


def listed() -> list[Listed]:
    """All running processes, without those that have ended and that their parent has not collected yet."""
    found = []
    for process in psutil.process_iter():
        # A process may end at any moment, and may be another user's.
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
            if process.status() != psutil.STATUS_ZOMBIE:
                used = process.cpu_times()
                cpu = float(used.user + used.system)
                found.append(Listed(process.pid, process.ppid(), cpu, " ".join(process.cmdline())))
    return found


def below(pid: int, among: Iterable[Listed] | None = None) -> list[Listed]:
    """The descendants of a process; `among` is a list of all processes that there is already."""
    children: dict[int, list[Listed]] = defaultdict(list)
    for one in listed() if among is None else among:
        children[one.parent].append(one)
    found, parents = [], [pid]
    while parents:
        for one in children[parents.pop()]:
            found.append(one)
            parents.append(one.pid)
    return found


def stop(child: subprocess.Popen[bytes], patience: float) -> None:
    """Send SIGTERM, and SIGKILL after `patience` seconds; ends all processes below it, too."""
    tree = below(child.pid)
    child.terminate()
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    _end(tree, patience=1)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the process and all processes below it with kill -9."""
    tree = below(child.pid)
    child.kill()
    _end(tree, patience=0)
    child.wait()


def _end(tree: Iterable[Listed], patience: float) -> None:
    """Give running processes `patience` seconds, then kill them; returns when they are gone."""
    commands = {one.pid: one.command for one in tree}
    deadline = time.monotonic() + patience
    while left := [one for one in listed() if commands.get(one.pid) == one.command]:
        if time.monotonic() > deadline:
            for one in left:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        time.sleep(POLL)
