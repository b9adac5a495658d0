"""Arguments that `penstock demo` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main


@pytest.mark.parametrize("place", [".", "file/result.json"])
def test_a_result_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--root", str(tmp_path / "root"), "--json", str(tmp_path / place)]) == 1
    assert "penstock: the result cannot be written: " in capsys.readouterr().err
    assert not (tmp_path / "root").exists()
