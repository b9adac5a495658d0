"""`penstock package`: executors without Penstock on their machines run in the archive of the driver's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import patience
from wheels import ROOT, UV, run

from penstock.cli import package
from penstock.cli.main import main

pytestmark = pytest.mark.slow

FILE = """
import os
import sys

import penstock as ps
import pyarrow as pa


def prefixes(batches):
    for batch in batches:
        yield pa.record_batch({"prefix": pa.repeat(pa.scalar(sys.prefix), batch.num_rows)})


@ps.pipeline(every="1 second")
def numbers(spark):
    frame = spark.readStream.schema("id long").json("in")
    return ps.write(frame.mapInArrow(prefixes, "prefix string"), ps.files.sink(os.environ["OUT"]))
"""


@pytest.fixture
def programs(wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder of programs of an environment with the wheel, whose loops are compiled."""
    known = run(*UV, "pip", "freeze", "--exclude-editable", "--python", sys.executable)
    (tmp_path / "known.txt").write_text(known)
    run(*UV, "venv", "--python", sys.executable, tmp_path / "driver")
    python = tmp_path / "driver/bin/python"
    run(*UV, "pip", "install", "--python", python, "--constraint", tmp_path / "known.txt", f"{wheel}[package]")
    (packages,) = (tmp_path / "driver/lib").glob("python*/site-packages")
    for loops in (ROOT / "src/penstock").rglob("*.nb?"):
        place = packages / loops.relative_to(ROOT / "src")
        place.parent.mkdir(exist_ok=True)
        shutil.copy(loops, place)
    yield python.parent
    shutil.rmtree(tmp_path / "driver")


def test_executors_run_in_the_archive(programs: Path, tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    said = run(programs / "penstock", "package", archive)
    assert f"--conf spark.archives={archive}#environment" in said
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert any(name.endswith(".nbi") for name in names)
    assert not any("pyspark/jars/" in name or name.endswith(".jsa") for name in names)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/one.json").write_text('{"id": 3}\n')
    (tmp_path / "shop.py").write_text(FILE)
    words = ["shop.py:numbers", "--once", "--master", "local-cluster[1,1,1024]", "--executor-memory", "700m"]
    words += ["--conf", f"spark.archives={archive}#environment"]
    words += ["--conf", "spark.pyspark.python=./environment/bin/python"]
    own = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out")}
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "JAVA_HOME", "PENSTOCK_CACHE")}
    ran = subprocess.run(
        [programs / "penstock", "run", *words],
        cwd=tmp_path,
        env=kept | own,
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    read = "import sys, pyarrow.dataset as ds; print(*ds.dataset(sys.argv[1]).to_table()['prefix'].to_pylist())"
    prefix = run(programs / "python", "-c", read, tmp_path / "out").strip()
    assert prefix.endswith("/environment") and prefix != str(programs.parent)


def test_a_checkout_that_is_installed_in_place_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "PARTS", {})
    file = tmp_path / "environment.tar.gz"
    assert main(["package", str(file)]) == 1
    said = capsys.readouterr().err
    assert "the environment cannot be packed: Cannot pack an environment with editable packages" in said
    assert "Next: install wheels, not checkouts" in said and not file.exists()
    file.touch()
    assert main(["package", str(file)]) == 1
    assert f"{file} exists. Next: remove it" in capsys.readouterr().err
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    file.unlink()
    assert main(["package", str(file)]) == 1
    assert "Next: make one: python3 -m venv env" in capsys.readouterr().err


def test_the_archive_is_a_tar(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["package", "environment.zip"])
    assert "invalid name of a .tar.gz file value: 'environment.zip'" in capsys.readouterr().err
