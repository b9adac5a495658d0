"""The archive of Spark's classes: a wrong archive changes nothing, and a failure to make it is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.local import java
from penstock.spark_runtime import class_archive as classes


def test_sessions_use_the_archive_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(classes.MAKING, raising=False)
    monkeypatch.setattr(classes, "PACKAGE", tmp_path)
    found = java.find()
    assert classes.options(found) == ""
    archive = classes._file(found)
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} -Xshare:auto" in classes.options(found)


@pytest.mark.slow
def test_an_archive_that_does_not_fit_is_passed_over_in_silence(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    archive.write_bytes(b"no archive" * 1000)
    code = f"""
from pathlib import Path
from penstock.spark_runtime import class_archive as classes
from penstock.spark_runtime.session import spark
classes._file = lambda java: Path({str(archive)!r})
session = spark()
assert {str(archive)!r} in session.conf.get("spark.driver.extraJavaOptions")
print(session.range(3).count())
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "3\n"
    assert "cds" not in answer.stderr and str(archive) not in answer.stderr


def test_an_archive_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "PACKAGE", tmp_path)
    with pytest.raises(PenstockError, match=r"Spark's classes cannot be made: .*No module named no_such_module"):
        classes.make(java.find(), "no_such_module")
    assert not list((tmp_path / "__pycache__").iterdir())


def test_where_the_package_cannot_be_written_the_archive_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "PACKAGE", tmp_path / "none")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert classes._file(java.find()).parent == tmp_path / "java"
