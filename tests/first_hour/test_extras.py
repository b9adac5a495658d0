"""Penstock without any extra, from its wheel in an environment of its own: what is missing is named, with a command."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from wheels import ROOT, run

from penstock.cli.main import COMMANDS

pytestmark = pytest.mark.slow

STATIC = ROOT / "src/penstock/console/page/static"
PACKAGES = ("cdc", "cql", "files", "join", "kafka", "postgres", "segment", "table", "window", "ingest", "state", "wire")
NAMES = """
import importlib, sys
import penstock
missing = []
for package in sys.argv[1:]:
    module = importlib.import_module(f"penstock.{package}")
    for name in getattr(module, "__all__", ()):
        try:
            getattr(module, name)
        except penstock.errors.PenstockError as error:
            assert isinstance(error, ModuleNotFoundError)
            print(f"{package}.{name}: {error}")
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_the_extra_that_it_needs(command: str, base: Path, tmp_path: Path) -> None:
    words = "penstock", command, "--help"
    ran = subprocess.run(words, executable=base / "penstock", cwd=tmp_path, capture_output=True, text=True, check=False)
    if ran.returncode:
        pattern = rf"penstock: penstock {command} needs the package \w+, which is not installed\. Next: run: (.*)\n"
        said = re.fullmatch(pattern, ran.stderr)
        assert said, ran.stderr
        assert re.fullmatch(r"pip install '/.*\.whl\[\w+\]'", said[1])
    else:
        assert ran.stdout.startswith(f"usage: penstock {command}")


def test_the_wheel_has_the_page_of_the_console(wheel: Path) -> None:
    here = [path.relative_to(ROOT / "src").as_posix() for path in STATIC.rglob("*") if path.is_file()]
    with zipfile.ZipFile(wheel) as opened:
        assert set(here) <= set(opened.namelist()) and f"{STATIC.relative_to(ROOT / 'src')}/index.html" in here


def test_a_demo_names_its_extras(base: Path, tmp_path: Path) -> None:
    ran = subprocess.run([base / "penstock", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and re.search(r"needs .*rich.*\. Next: run: pip install '/.*\.whl\[demo\]'$", ran.stderr)


def test_a_public_name_names_the_extra_that_it_needs(base: Path, tmp_path: Path) -> None:
    said = run(base / "python", "-c", NAMES, *PACKAGES, folder=tmp_path).splitlines()
    of = {line.partition(":")[0]: re.search(r"\[(\w+)\]'$", line) for line in said}
    extras = {name: found[1] for name, found in of.items() if found}
    assert extras.keys() == of.keys()
    assert {"cdc.read": "cql", "cql.sink": "cql"}.items() <= extras.items()
    assert not {name for name in extras if name.split(".")[0] in ("files", "join", "kafka", "table", "window")}


def test_a_pipeline_that_needs_an_extra_names_it_and_the_line(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("from penstock import cql\n\nsink = cql.sink('shop.t', hosts='127.0.0.1:9042')\n")
    words = "penstock", "run", f"{file}:orders"
    ran = subprocess.run(words, executable=base / "penstock", cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "penstock.cql.sink needs the package cassandra" in ran.stderr and "shop.py, line 3" in ran.stderr
    assert ran.stderr.rstrip().endswith("[cql]'") and "Traceback" not in ran.stderr
