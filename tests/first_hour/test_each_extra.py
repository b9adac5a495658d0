"""Penstock's wheel with its base alone, and with each extra alone: what they bring is there and used."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheels import ROOT, installed, run

from penstock import extras
from penstock.cli.main import EXTRAS as OF_COMMANDS
from penstock.local import java

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OF_USERS = [name for name in EXTRAS if name not in ("dev", "docs")]
IMPORTED = sorted({*extras.MODULES.values()})
"""The extras whose packages our modules import; the others bring programs."""

PIPELINE = """
import penstock as ps


@ps.pipeline(every="1 second")
def doubled(spark):
    frame = spark.readStream.schema("id long").json("in")
    return ps.write(frame.selectExpr("id * 2 AS twice"), ps.files.sink("out"))
"""
READ = "import pyarrow.dataset as ds; print(*ds.dataset('out', format='parquet').to_table()['twice'].to_pylist())"

USED = """
import contextlib, importlib, io, sys
from importlib.metadata import packages_distributions

import penstock
from penstock.cli.main import COMMANDS, main

distributions, names = sys.argv[1].split(","), sys.argv[2].split(",")
for module, owners in packages_distributions().items():
    if {owner.lower().replace("_", "-") for owner in owners} & {*distributions} and not module.startswith("_"):
        importlib.import_module(module)
        print("imported", *(owner.lower().replace("_", "-") for owner in owners))
for package in names:
    module = importlib.import_module(f"penstock.{package}")
    for name in getattr(module, "__all__", ()):
        try:
            getattr(module, name)
        except penstock.errors.PenstockError as error:
            print(error)
for command in COMMANDS:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main([command, "--help"])
    print(said.getvalue())
"""
PACKAGES = "cdc,cql,delta,files,join,kafka,postgres,replicate,segment,table,window,ingest,state,wire"


def brought(extra: str) -> set[str]:
    """The distributions that an extra names, itself or by other extras."""
    found: set[str] = set()
    for one in map(Requirement, EXTRAS[extra]):
        if one.name == "penstock":
            found |= set().union(*map(brought, one.extras))
        else:
            found.add(canonicalize_name(one.name))
    return found


def test_each_package_of_an_extra_is_known_to_the_error_that_names_it() -> None:
    """A module that the error does not know would be a bare ModuleNotFoundError."""
    modules: dict[str, set[str]] = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            modules.setdefault(canonicalize_name(owner), set()).add(module)
    for extra in OF_USERS:
        for distribution in brought(extra) if extra in IMPORTED else ():
            named = {extras.MODULES[module] for module in modules[distribution] & extras.MODULES.keys()}
            assert named, f"penstock.extras.MODULES lacks {distribution} of the extra {extra}"
            assert all(distribution in brought(one) for one in named)


@pytest.mark.slow
def test_the_base_alone_says_its_version_and_helps(base: Path, wheel: Path, tmp_path: Path) -> None:
    version = wheel.name.split("-")[1]
    assert run(base / "penstock", "--version", folder=tmp_path) == f"penstock {version}\n"
    assert run(base / "penstock", "--help", folder=tmp_path).startswith("usage: penstock")
    script = "import penstock; print(penstock.__version__, *dir(penstock))"
    assert run(base / "python", "-c", script, folder=tmp_path).startswith(f"{version} ")


@pytest.mark.slow
def test_the_base_alone_runs_a_pipeline(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files to files: no server, and no extra but a Java."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/one.json").write_text('{"id": 3}\n{"id": 4}\n')
    (tmp_path / "twice.py").write_text(PIPELINE)
    monkeypatch.setenv("JAVA_HOME", str(java.find().home))
    run(base / "penstock", "run", "twice.py:doubled", "--once", folder=tmp_path)
    assert sorted(run(base / "python", "-c", READ, folder=tmp_path).split()) == ["6", "8"]


@pytest.mark.slow
def test_the_base_alone_has_all_commands_but_those_of_an_extra(base: Path, tmp_path: Path) -> None:
    said = run(base / "python", "-c", USED, "", PACKAGES, folder=tmp_path)
    assert {*re.findall(r"^penstock: penstock (\w+) needs", said, re.MULTILINE)} <= OF_COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("extra", OF_USERS)
def test_an_extra_alone_brings_what_it_is_for(extra: str, wheel: Path, known: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path, f"{wheel}[{extra}]", known)
    words = (programs / "python", "-c", USED, ",".join(brought(extra)), PACKAGES)
    ran = subprocess.run([*map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False)
    shutil.rmtree(programs.parent)
    assert ran.returncode == 0, ran.stderr
    imported = {word for line in ran.stdout.splitlines() if line.startswith("imported ") for word in line.split()[1:]}
    assert brought(extra) <= imported
    missing = set(re.findall(r"Next: run: pip install '.*\[([\w-]+)\]'", ran.stdout))
    assert extra not in missing and missing <= {*IMPORTED, *OF_USERS}
