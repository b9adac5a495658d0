"""The jars of each service: listed in committed lock files, fetched once into the user's cache, checked by SHA-256.

A jar is written to `<name>.part` under a lock on that file and renamed when it is complete. So a broken download is
resumed, two processes may fetch at the same time, and a file with the final name is always correct.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from importlib.resources import files
from importlib.util import find_spec
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from penstock.errors import PenstockError

THREADS = 8
CHUNK = 1 << 18
TIMEOUT = 20.0
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds before each further attempt
SOURCES = "set PENSTOCK_MIRROR to a Maven repository you can reach, or PENSTOCK_OFFLINE to a folder with the jars"
RESOLVER = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"
# The class has another address, which is not of Maven 2's layout. A class file has its strings as plain bytes.
ROOT = re.compile(rb"https://[\w.:/-]+/maven2/")


@dataclass(frozen=True)
class Artifact:
    """A file of a Maven repository: its path below the root, its SHA-256 and its size in bytes."""

    path: str
    sha256: str
    size: int

    @property
    def file(self) -> Path:
        return cache() / self.path

    @property
    def cached(self) -> bool:
        # A file gets this name only after its checksum was verified, so checking the size is enough.
        return self.file.is_file() and self.file.stat().st_size == self.size


class _WrongContent(Exception):
    """The received bytes do not match the lock file."""


def cache() -> Path:
    folder = os.environ.get("PENSTOCK_CACHE")
    return Path(folder).expanduser() if folder else Path.home() / ".cache/penstock/jars"


def artifacts(name: str) -> list[Artifact]:
    """The artifacts of the lock file `name`, in class path order."""
    text = (files("penstock.local") / "locks" / f"{name}.lock").read_text()
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return [Artifact(path, sha256, int(size)) for path, sha256, size in rows]


def fetch(name: str, say: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Fetch missing jars of the lock file `name`; returns the paths of all, in class path order.

    Raises PenstockError if a jar cannot be fetched or there is too little disk space.
    """
    wanted = artifacts(name)
    missing = [artifact for artifact in wanted if not artifact.cached]
    if missing:
        say(f"fetching {len(missing)} jars for {name}, {sum(a.size for a in missing) / 1e6:.0f} MB")
        fetch_all(missing)
    return [artifact.file for artifact in wanted]


def fetch_all(missing: list[Artifact]) -> None:
    """Fetch into the cache, several at the same time; the first failure stops all."""
    _require_space(missing)
    stop = threading.Event()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="jars") as pool:
        try:
            for done in as_completed([pool.submit(_fetch_one, artifact, stop) for artifact in missing]):
                done.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _require_space(missing: list[Artifact]) -> None:
    folder = cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise PenstockError(
            f"Cannot create the folder for jars: {problem.strerror}",
            where=str(folder),
            next="set PENSTOCK_CACHE to a folder you may write to",
        ) from problem
    need, free = sum(artifact.size for artifact in missing), shutil.disk_usage(folder).free
    if need > free:
        raise _no_space(folder, f"{need / 1e6:.0f} MB of jars do not fit, {free / 1e6:.0f} MB are free")


def _no_space(folder: Path, what: str = "the disk is full") -> PenstockError:
    return PenstockError(
        f"No disk space: {what}", where=str(folder), next="free some space or set PENSTOCK_CACHE to another disk"
    )


def _fetch_one(artifact: Artifact, stop: threading.Event) -> None:
    artifact.file.parent.mkdir(parents=True, exist_ok=True)
    part = artifact.file.with_name(artifact.file.name + ".part")
    try:
        # The lock makes other processes wait here. The file is never removed, only renamed, so a process that waited
        # finds the complete file.
        with part.open("a+b") as output:
            fcntl.flock(output, fcntl.LOCK_EX)
            if not artifact.cached:
                _complete(artifact, output, stop)
                part.rename(artifact.file)
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            raise _no_space(part.parent) from problem
        raise


def _complete(artifact: Artifact, output: BufferedRandom, stop: threading.Event) -> None:
    """Fill `output` with the artifact's full content; retries faults that may be temporary."""
    for pause in (*PAUSES, None):
        try:
            _append(artifact, output, stop)
            _verify(artifact, output)
            return
        except (OSError, HTTPException, _WrongContent) as problem:
            if getattr(problem, "errno", None) == errno.ENOSPC:
                raise
            if pause is None or not _passing(problem) or stop.is_set():
                raise _failure(artifact, problem) from problem
            time.sleep(pause)


def _append(artifact: Artifact, output: BufferedRandom, stop: threading.Event) -> None:
    have = output.seek(0, os.SEEK_END)
    if have >= artifact.size:
        return
    body, start = _open(artifact, have)
    with body:
        output.truncate(start)
        left = artifact.size - start
        while not stop.is_set() and (chunk := body.read(min(CHUNK, left + 1))):
            left -= len(chunk)
            if left < 0:
                output.truncate(0)
                raise _WrongContent(f"it has more than the {artifact.size} bytes of the lock file")
            output.write(chunk)
    output.flush()


def _verify(artifact: Artifact, output: BufferedRandom) -> None:
    output.seek(0)
    size = os.fstat(output.fileno()).st_size
    if size < artifact.size:
        raise ConnectionError(f"the connection ended after {size} of {artifact.size} bytes")
    if hashlib.file_digest(output, "sha256").hexdigest() != artifact.sha256:
        output.truncate(0)
        raise _WrongContent("its SHA-256 is not the one in the lock file")


def _open(artifact: Artifact, have: int) -> tuple[BinaryIO, int]:
    """The artifact's bytes and the position of the first one: `have`, or 0 if the source cannot resume."""
    offline = _offline()
    if offline:
        nested, flat = offline / artifact.path, offline / Path(artifact.path).name
        return (nested if nested.exists() else flat).open("rb"), 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer = urlopen(Request(_root() + artifact.path, headers=headers), timeout=TIMEOUT)
    except HTTPError as refusal:
        refusal.close()  # it holds the connection
        raise
    return answer, have if answer.status == HTTPStatus.PARTIAL_CONTENT else 0


def _offline() -> Path | None:
    folder = os.environ.get("PENSTOCK_OFFLINE")
    return Path(folder).expanduser() if folder else None


def _root() -> str:
    mirror = os.environ.get("PENSTOCK_MIRROR")
    return mirror.rstrip("/") + "/" if mirror else default_root()


def default_root() -> str:
    """The base address of the public Maven repository, with a slash at its end; raises PenstockError if not found.

    Spark resolves `spark.jars.packages` with Apache Ivy, and a class of Ivy has this address as a constant. It is read
    from there, so that both are always the same.
    """
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("pyspark/jars")
    for jar in sorted(folder.glob("ivy-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            root = ROOT.search(archive.read(RESOLVER))
        if root:
            return root.group().decode()
    raise PenstockError(
        "No Maven repository to fetch jars from: Spark's own Ivy jar is missing or contains no address",
        where=str(folder),
        next="set PENSTOCK_MIRROR to the base address of a Maven repository, or reinstall pyspark",
    )


def _passing(problem: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(problem, HTTPError):
        return problem.code == HTTPStatus.TOO_MANY_REQUESTS or problem.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return not isinstance(problem, FileNotFoundError | PermissionError)


def _failure(artifact: Artifact, problem: Exception) -> PenstockError:
    reason = f"HTTP {problem.code}" if isinstance(problem, HTTPError) else getattr(problem, "reason", None) or problem
    if isinstance(problem, OSError) and problem.strerror and not isinstance(problem, HTTPError):
        reason = problem.strerror
    offline = _offline()
    return PenstockError(
        f"Cannot fetch {artifact.path}: {reason}",
        where=f"PENSTOCK_OFFLINE={offline}" if offline else f"from {_root()}",
        next=SOURCES,
    )
