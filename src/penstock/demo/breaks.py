"""The breaks of `--break`: each kills one part in the middle of the run and starts it again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock.demo.parts import Pipeline
from penstock.local import services
from penstock.local.services import Services

PARTS = ("spark", "worker", "kafka", "cassandra")


def kill(part: str, running: Services, pipeline: Pipeline) -> None:
    """kill -9."""
    if part == "spark":
        pipeline.kill()
    elif part == "worker":
        pipeline.kill_worker()
    else:
        os.kill(running.pids[part], signal.SIGKILL)


def start_again(part: str, root: Path, pipeline: Pipeline) -> None:
    """Start what was killed, at the same address; a worker is Spark's own to start."""
    if part == "spark":
        pipeline.start_again()
    elif part != "worker":
        services.up(root, only=[part])
