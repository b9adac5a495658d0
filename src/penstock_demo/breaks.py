"""The breaks of `--break`: each kills a part during the run and starts it again, or changes the database."""

from __future__ import annotations

import os
import signal

from penstock.local import services
from penstock.local.services import Services
from penstock_demo.generation import publish
from penstock_demo.node import connect
from penstock_demo.parts import Pipeline
from penstock_demo.shop import add_column


def strike(part: str, number: int, running: Services, pipeline: Pipeline) -> str:
    """Kill the part with kill -9, add a column ("alter"), or publish new streams ("generation"); returns a line for it.

    `number` is the break's number.
    """
    if part == "generation":
        with connect(running.cql) as session:
            return f"published streams in use from {publish(session):%H:%M:%S} UTC"
    if part == "alter":
        with connect(running.cql) as session:
            session.execute(statement := add_column(number))
        return statement
    _kill(part, running, pipeline)
    return f"killed {part} with kill -9"


def _kill(part: str, running: Services, pipeline: Pipeline) -> None:
    if part == "spark":
        pipeline.kill()
    elif part == "worker":
        pipeline.kill_worker()
    else:
        os.kill(running.pids[part], signal.SIGKILL)


def start_again(part: str, running: Services, pipeline: Pipeline) -> Services:
    """Start the killed part at the same address, and return the running services; Spark restarts a worker itself."""
    if part == "spark":
        pipeline.start_again()
    elif part in ("kafka", "cassandra"):
        return services.up(running.root, only=[part])
    return running
