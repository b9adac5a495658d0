"""A server of S3's interface on this machine, which keeps its buckets in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from waiting import until

from penstock.local import ports

BUCKET = "tables"


@dataclass(frozen=True)
class S3Server:
    """A running server with the bucket BUCKET."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def options(self) -> dict[str, str]:
        """The storage options of delta-rs, with short times until a server counts as away."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "timeout": "2s",
            "max_retries": "0",
        }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A new server; its log is below `folder`."""
    port = ports.free(set())
    command = [sys.executable, "-m", "moto.server", "-H", ports.HOST, "-p", str(port)]
    with (
        (folder / "s3.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            server = S3Server(f"http://{ports.HOST}:{port}", process)
            until(lambda: process.poll() is not None or _has_bucket(server.url), "S3 server")
            assert process.poll() is None, (folder / "s3.log").read_text()
            yield server
        finally:
            process.kill()


def _has_bucket(url: str) -> bool:
    try:
        with urlopen(Request(f"{url}/{BUCKET}", method="PUT")) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
