"""The schema registry as a local service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from penstock import kafka
from penstock.errors import PenstockError
from penstock.local import services

PENSTOCK = (sys.executable, "-m", "penstock")
SCHEMA = '{"type":"record","name":"kept","fields":[]}'


def states(root: Path) -> list[str]:
    return [status.state for status in services.status(root)]


def listening(pid: int) -> set[str]:
    """The local addresses on which a process listens, in the kernel's format."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    inodes = {target[8:-1] for target in sockets if target.startswith("socket:[")}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


@pytest.mark.slow
def test_it_starts_when_asked_for_on_loopback_alone_and_keeps_its_schemas(tmp_path: Path) -> None:
    command = [*PENSTOCK, "up", "--root", str(tmp_path), "--only", "registry"]
    try:
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "registry   running" in told
        running = services.up(tmp_path, only=[], also=["registry"])
        known = kafka.Registry(running.registry).id("kept-value", SCHEMA, "AVRO")
        assert listening(running.pids["registry"]) <= {"0100007F", "0000000000000000FFFF00000100007F"}
        os.kill(running.pids["registry"], signal.SIGKILL)
        until(lambda: states(tmp_path) == ["stopped", "stopped", "died"], "end of the killed process")
        again = services.up(tmp_path, only=["registry"])
        assert again.registry == running.registry and again.pids != running.pids
        assert kafka.Registry(again.registry, register=False).id("kept-value", SCHEMA, "AVRO") == known
    finally:
        assert services.down(tmp_path) == ["registry"]
    assert [status.name for status in services.status(tmp_path)] == ["cassandra", "kafka"]


def test_its_address_is_asked_for_when_it_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"registry is not running .* Next: run: penstock up --with registry"):
        _ = services.Services(tmp_path, {}).registry
