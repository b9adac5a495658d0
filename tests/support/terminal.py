"""Commands in a terminal: with colours, prompts and Ctrl-C as a user has them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from waiting import patience

ROWS, COLUMNS = 40, 200
CONTROLLED = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the controlling one, which turns Ctrl-C into a signal; shells let background jobs ignore it."""
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = patience(300)
"""Seconds after which a command hangs: no measure of speed."""
INTERRUPT = b"\x03"


class Terminal:
    """A command in a pseudo-terminal of its own; `first` is when its first line came, in seconds after its start."""

    def __init__(self, command: Sequence[object], folder: Path, environment: Mapping[str, str]) -> None:
        self._keyboard, screen = pty.openpty()
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        words = [sys.executable, "-S", "-c", CONTROLLED, *map(str, command)]
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            words, cwd=folder, env=dict(environment), stdin=screen, stdout=screen, stderr=screen
        )
        os.close(screen)
        self._text, self.first, self.seconds = "", 0.0, 0.0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._keyboard)

    @property
    def lines(self) -> list[str]:
        """The lines so far; of a line that is replaced, the last."""
        plain = SEQUENCES.sub("", self._text).replace("\r\n", "\n")
        return [line.rpartition("\r")[2] for line in plain.split("\n") if line.strip()]

    def until(self, pattern: str, patience: float = PATIENCE) -> str:
        """The first line that matches; raises AssertionError if the command ends without it, or does not write it."""
        deadline = time.monotonic() + patience
        while True:
            if line := next((line for line in self.lines if re.search(pattern, line)), None):
                return line
            more = self._read(deadline)
            assert more, f"no {pattern!r} within {patience:g} s in:\n{os.linesep.join(self.lines)}"

    def type(self, text: bytes) -> None:
        os.write(self._keyboard, text)

    def end(self, patience: float = PATIENCE) -> int:
        """The exit code, when the command has ended."""
        deadline = time.monotonic() + patience
        while self._read(deadline):
            pass
        code = self._process.wait(max(0.1, deadline - time.monotonic()))
        self.seconds = time.monotonic() - self.began
        return code

    def _read(self, deadline: float) -> bool:
        """Whether the command wrote something before its end and the deadline."""
        while time.monotonic() < deadline:
            if select.select([self._keyboard], [], [], 0.2)[0]:
                try:
                    data = os.read(self._keyboard, 65536)
                except OSError:  # Linux: all writers are gone
                    return False
                self._text += data.decode(errors="replace")
                if "\n" in self._text and not self.first:
                    self.first = time.monotonic() - self.began
                return bool(data)
            if self._process.poll() is not None and not select.select([self._keyboard], [], [], 0)[0]:
                # A child, such as a server, may keep the terminal open.
                return False
        return False
