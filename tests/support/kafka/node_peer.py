"""KafkaJS, the client of Node.js, as a peer: installed once, at the versions of kafkajs/package-lock.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from peer_records import Part, Record
from waiting import PATIENCE

from penstock.local import jars

FOLDER = Path(__file__).parent / "kafkajs"


def read(servers: str, topic: str, count: int, *, as_installed: bool = False) -> list[Record]:
    """The first `count` committed records; the values of the same header name are grouped.

    `as_installed` leaves out the packages for compression that KafkaJS lacks.
    """
    found = _run("read", servers=servers, topic=topic, count=count, asInstalled=as_installed)
    return [
        Record(
            one["partition"],
            _bytes(one["key"]),
            _bytes(one["value"]),
            [(name, _bytes(value)) for name, value in one["headers"]],
            one["timestamp"],
        )
        for one in found
    ]


def write(servers: str, topic: str, parts: list[Part]) -> None:
    _run("write", servers=servers, topic=topic, parts=[_as_json(part) for part in parts])


def _run(action: str, **asked: Any) -> Any:
    if missing := [name for name in ("node", "npm") if not shutil.which(name)]:
        pytest.skip(f"KafkaJS needs {' and '.join(missing)}, not on this machine")
    done = subprocess.run(
        ["node", str(FOLDER / "peer.js"), action],
        input=json.dumps(asked),
        env=os.environ | {"NODE_PATH": str(_installed() / "node_modules")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _installed() -> Path:
    """The folder with KafkaJS; installed under another name first and renamed, so that it is always complete."""
    lock = (FOLDER / "package-lock.json").read_bytes()
    folder = jars.cache() / "node" / hashlib.sha256(lock).hexdigest()[:12]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch, "kafkajs")
            fresh.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(FOLDER / name, fresh)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert done.returncode == 0, done.stderr
            with suppress(OSError):  # another run was faster
                fresh.rename(folder)
    return folder


def _as_json(part: Part) -> dict[str, Any]:
    records = [
        {
            "partition": one.partition,
            "key": _base64(one.key),
            "value": _base64(one.value),
            "headers": [(name, _base64(value)) for name, value in one.headers],
            "timestamp": one.timestamp,
        }
        for one in part.records
    ]
    return {"codec": part.codec, "end": part.end, "records": records}


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)
