"""What all connectors of a worker share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.connect.worker.providers import Provided
from penstock.connect.worker.secrets import Secrets
from penstock.run.life_signs import Observer
from penstock.watch.meters import Meters


@dataclass(frozen=True)
class WorkerContext:
    """The session, and the settings of the worker; `checkpoints` is the folder of the checkpoints.

    `observer` makes one for each task.
    """

    spark: SparkSession
    servers: str
    checkpoints: Path
    provided: Provided = field(default_factory=Provided)
    producer: Mapping[str, str] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=Secrets)
    meters: Meters = field(default_factory=Meters)
    observer: Callable[[], Observer] = Observer
