"""`penstock run` on a cluster, by drivers on machines of their own: only the checkpoint's folder is common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from waiting import patience, until

PATIENCE = patience(180)


class ClusterRuns:
    """Runs of one pipeline with one checkpoint."""

    def __init__(self, folder: Path, master: str, text: str, **environment: str) -> None:
        self._folder, self._master, self._environment = folder, master, environment
        (folder / "shop.py").write_text(text)
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self, machine: str) -> None:
        """A driver in a working directory of its own."""
        own = self._folder / machine
        own.mkdir()
        words = ["--master", self._master, "--executor-memory", "700m", "--checkpoints", str(self._folder / "kept")]
        # All state is on disk between two batches.
        words += ["--state-memory", "1k"]
        self._said = own / "said"
        with self._said.open("wb") as said:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", f"{self._folder}/shop.py:shop", *words],
                cwd=own,
                env=os.environ | self._environment | {"PYSPARK_PYTHON": sys.executable},
                stderr=said,
                start_new_session=True,
            )

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait for results; fails if the driver ends before."""
        assert self._driver
        driver = self._driver

        def there() -> bool:
            assert driver.poll() is None, self._said.read_text()
            return reached()

        until(there, "results", PATIENCE)

    def stop(self) -> None:
        """End the driver as a user does."""
        assert self._driver
        self._driver.send_signal(signal.SIGTERM)
        assert self._driver.wait(PATIENCE) == 0, self._said.read_text()

    def refused(self) -> str:
        """What the driver says at its end, which comes by itself."""
        assert self._driver
        assert self._driver.wait(PATIENCE) == 1, self._said.read_text()
        return self._said.read_text()

    def kill(self) -> None:
        """End the driver and its JVM, as a machine does that loses its power."""
        if self._driver and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
