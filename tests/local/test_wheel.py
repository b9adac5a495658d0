"""A wheel of a fresh checkout has the plugin for Apache Cassandra, or is not built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, UV

PLUGIN = "penstock/local/penstock-cassandra.jar"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of this checkout, without what `make` builds."""
    folder = tmp_path / "checkout"
    for name in ("src", "cassandra"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.jar"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    return folder


def built(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [*UV[:-1], "build", "--wheel", "--no-build-isolation", "--out-dir", checkout / "dist", checkout]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_plugin_is_built_into_it_by_the_command_of_the_docs(checkout: Path) -> None:
    """With what `make setup` has installed, to the place from which the image takes it."""
    (command,) = re.findall(r"^\.venv/bin/(\S+ wheel .+?) +#", (ROOT / "docs/deployment.md").read_text(), re.MULTILINE)
    program, *words = command.split()
    words = [str(Path(sys.executable).parent / program), *words]
    made = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (copied,) = re.findall(r"^COPY (\S+\.whl) ", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    (wheel,) = checkout.glob(copied)
    assert PLUGIN in zipfile.ZipFile(wheel).namelist()


def test_it_is_refused_without_a_plugin(checkout: Path) -> None:
    source = next((checkout / "cassandra/src").rglob("*.java"))
    source.write_text("no Java")
    made = built(checkout)
    assert made.returncode != 0
    assert "No wheel: its plugin for Apache Cassandra cannot be built." in made.stderr
    assert "The plugin does not compile" in made.stderr and source.name in made.stderr
    assert not list((checkout / "dist").glob("*.whl"))
