"""`penstock demo` as a process of its own, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from waiting import patience

PATIENCE = patience(600)
MARK = "PENSTOCK_TEST_DEMO"


def start(root: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "demo", "--root", str(root), *options]
    mark = os.environ | {MARK: str(root)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=mark)


def finish(demo: subprocess.Popen[str]) -> str:
    said, _ = demo.communicate(timeout=PATIENCE)
    return said


def left(root: Path) -> dict[int, str]:
    """Command lines of the processes that a demo on this root has started, at any depth: they inherit its mark."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={root}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
