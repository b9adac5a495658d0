"""`penstock connect` as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


def properties(servers: str) -> str:
    """The properties of a worker on its own, as in Connect's quick start."""
    return f"""# where Kafka is
bootstrap.servers={servers}
listeners=http://127.0.0.1:0
config.storage.topic=configs-{uuid.uuid4().hex[:8]}
key.converter={CONVERTER}
value.converter={CONVERTER}
value.converter.schemas.enable=false
config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
"""


def group_properties(servers: str) -> str:
    """The properties of workers that are a group."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    return f"""{properties(servers)}group.id={name}
offset.storage.topic={name}-offsets
offset.storage.replication.factor=1
status.storage.topic={name}-status
session.timeout.ms=6000
heartbeat.interval.ms=500
"""


@contextmanager
def worker(
    file: Path, data: Path, *options: str, connectors: Sequence[Path] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A worker's process, and the address of its API; killed at the end. `connectors` are their files."""
    files = [str(file), *map(str, connectors)]
    command = [sys.executable, "-m", "penstock", "connect", *files, "--data", str(data), *options]
    # A fork server of the tests' own session is not for executors.
    own = os.environ | {"PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
