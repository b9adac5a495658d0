"""The browser of the console's tests: a Chromium of this machine, driven by Playwright.

Tests look for a browser and install none. `python tests/support/http/chromium.py` fetches Debian's with apt-get into
the cache, without root: the packages that the machine lacks are unpacked, not installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock/chromium"
PACKAGE = "chromium-headless-shell"
NAMES = (PACKAGE, "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--disable-gpu", "--disable-quic")
"""Besides those of Playwright, which switch off all that the browser asks the network by itself."""
MISSING = (
    "no Chromium: install one (`apt-get install chromium-headless-shell`), set PENSTOCK_TEST_CHROMIUM to one, or run "
    "`python tests/support/http/chromium.py`, which unpacks Debian's into the cache"
)


@dataclass(frozen=True)
class Chromium:
    """A browser's program, and the variables of its environment."""

    program: str
    environment: dict[str, str | float | bool] = field(default_factory=dict)


def find() -> Chromium | None:
    """The chosen browser, one on the PATH, or the one in the cache."""
    if given := os.environ.get("PENSTOCK_TEST_CHROMIUM"):
        return Chromium(given)
    if on_path := next(filter(None, map(shutil.which, NAMES)), None):
        return Chromium(on_path)
    unpacked = next(CACHE.glob("usr/lib/chromium*/chromium-headless-shell"), None)
    if unpacked is None:
        return None
    libraries = ":".join(sorted({str(file.parent) for file in CACHE.glob("usr/lib/*-linux-gnu/**/*.so*")}))
    return Chromium(str(unpacked), {**os.environ, "LD_LIBRARY_PATH": libraries})


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser; skips the test, and says why, where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    found = find()
    if found is None:
        pytest.skip(MISSING)
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found.program, args=[*FLAGS], env=found.environment or None
        )
        try:
            yield launched
        finally:
            launched.close()


def fetch() -> int:
    """Unpack Debian's browser and the libraries that this machine lacks into the cache, unless there is a browser."""
    if found := find():
        print(found.program)
        return 0
    if shutil.which("apt-get") is None:
        print(f"apt-get is not here. {MISSING}", file=sys.stderr)
        return 1
    plan = ["apt-get", "install", "--simulate", "--no-install-recommends", PACKAGE]
    planned = subprocess.run(plan, capture_output=True, text=True, check=False)
    packages = re.findall(r"^Inst (\S+)", planned.stdout, re.MULTILINE)
    if planned.returncode or not packages:
        print(planned.stderr or planned.stdout, "Next: apt-get update, as root", file=sys.stderr)
        return 1
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        # apt-get checks the packages against the hashes of the signed lists.
        subprocess.run(["apt-get", "download", "--quiet", *packages], cwd=folder, check=True)
        unpacked = Path(folder) / "root"
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        shutil.rmtree(CACHE, ignore_errors=True)
        unpacked.rename(CACHE)
    print(f"{CACHE}: {', '.join(packages)}")
    return 0


if __name__ == "__main__":
    sys.exit(fetch())
