"""The four jobs in Penstock and its peers: each a process that tells what it has done so far."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _stream_jobs import Topics
from penstock.local import jars, java

ENDLESS = 1 << 60
"""More events than come."""
MOST = 1800
"""Seconds of a run."""
SOURCE = Path(__file__).parent / "java/StreamsJobs.java"
OURS = Path(__file__).parent / "_stream_penstock.py"
PYTHON_PEERS = {"quix": "_stream_quix.py", "bytewax": "_stream_bytewax.py"}


@dataclass(frozen=True)
class Sample:
    """How many events were done at a time, in seconds, and the CPU seconds that the process had used."""

    events: int
    at: float
    cpu: float


def compile_java(folder: Path) -> list[str]:
    """The class path of the jobs in Kafka Streams."""
    libraries = [str(jar) for jar in (*jars.fetch("kafka-streams"), *jars.fetch("kafka"))]
    (compiler,) = jars.fetch("compiler")
    path = os.pathsep.join(libraries)
    command = [
        str(java.find().bin),
        "-jar",
        str(compiler),
        "-17",
        "-nowarn",
        "-cp",
        path,
        "-d",
        str(folder),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return [str(folder), *libraries]


def kafka_streams(
    class_path: list[str], job: str, topics: Topics, events: int, threads: int, folder: Path
) -> list[Sample]:
    return samples(java_command(class_path, job, topics, events, threads, folder))


def penstock(job: str, topics: Topics, events: int, threads: int, folder: Path) -> list[Sample]:
    return samples(our_command(job, topics, events, threads, folder))


def our_command(job: str, topics: Topics, events: int, threads: int, folder: Path) -> list[str]:
    return [sys.executable, str(OURS), *_words(job, topics, events, threads, folder)]


def _words(job: str, topics: Topics, events: int, threads: int, folder: Path) -> list[str]:
    return [job, topics.servers, topics.events, topics.results, topics.people, str(events), str(threads), str(folder)]


def java_command(class_path: list[str], job: str, topics: Topics, events: int, threads: int, folder: Path) -> list[str]:
    """It ends after so many events."""
    java_words = [str(java.find().bin), "-Xmx2g", "-cp", os.pathsep.join(class_path), "StreamsJobs"]
    return [*java_words, *_words(job, topics, events, threads, folder), folder.name]


@contextmanager
def endless(command: list[str]) -> Iterator[None]:
    """A job until the end of the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def python_peer(
    python: Path, peer: str, job: str, topics: Topics, events: int, threads: int, folder: Path
) -> list[Sample]:
    file = Path(__file__).parent / PYTHON_PEERS[peer]
    return samples([str(python), str(file), *_words(job, topics, events, threads, folder)])


def samples(command: list[str]) -> list[Sample]:
    """The start of a process, and each of its lines that has three numbers: events, milliseconds, those of CPU."""
    found = [Sample(0, time.time(), 0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said, error = process.communicate(timeout=MOST)
    for line in said.splitlines():
        words = line.split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            found.append(Sample(int(words[0]), int(words[1]) / 1000, int(words[2]) / 1000))
    if process.returncode or len(found) < 3:
        print(error[-3000:], file=sys.stderr)
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return found
