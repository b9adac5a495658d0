"""Prometheus and its promtool, from Debian's package: fetched once, unpacked into the cache, not installed.

Tests that use them are skipped, with the reason, where the package cannot be had.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from waiting import PATIENCE, until

from penstock.local import jars

NAMES = ("promtool", "prometheus")
"""Seconds for a download of 19 MB, and for a start."""
ADVICE = "apt-get must reach Debian's package `prometheus`, or `promtool` and `prometheus` 2.42 or later be on PATH"


def program(name: str) -> str:
    """The path of promtool or prometheus; skips the test if it cannot be had."""
    folder, problem = _programs()
    if problem:
        pytest.skip(f"no {name}: {problem}. {ADVICE}")
    return str(folder / name) if folder else name


@cache
def _programs() -> tuple[Path | None, str]:
    """The folder of the programs, None for those on PATH; and why they are missing."""
    if all(map(shutil.which, NAMES)):
        return None, ""
    folder = jars.cache().parent / "prometheus"
    problem = "" if folder.is_dir() else _unpack(folder)
    return folder, problem


def _unpack(folder: Path) -> str:
    """Make the folder; returns the problem if that fails. Others may do the same at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        try:
            _run("apt-get", "download", "prometheus", folder=place)
            (package,) = Path(place).glob("prometheus_*.deb")
            _run("dpkg-deb", "--extract", package, "all", folder=place)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", None) or error)
            return said.strip().splitlines()[-1]
        found = Path(place) / "all/usr/bin"
        if not folder.exists():
            shutil.move(found, folder)
    return ""


def _run(*command: object, folder: str) -> None:
    words = [str(word) for word in command]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE)


def promtool(*words: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    command = [program("promtool"), *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=PATIENCE)


@dataclass(frozen=True)
class Prometheus:
    """A server that scrapes."""

    url: str

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of its API."""
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression, now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The only value of an expression; None if it has none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """A server that scrapes the addresses of each job every second; stopped afterwards."""
    jobs = [{"job_name": name, "static_configs": [{"targets": list(found)}]} for name, found in targets.items()]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings = {"global": every, "rule_files": [str(file) for file in rules], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    log = folder / "prometheus.log"
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
        "log.format": "json",
    }
    command = [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    with log.open("w") as lines, subprocess.Popen(command, stdout=lines, stderr=lines) as process:
        try:
            yield Prometheus(f"http://{until(lambda: _address(log, process), 'address of Prometheus')}")
        finally:
            process.terminate()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, once it is ready."""
    assert process.poll() is None, log.read_text()
    said = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    ready = any("ready to receive" in line.get("msg", "") for line in said)
    return next((line["address"] for line in said if ready and line.get("msg") == "Listening on"), "")
