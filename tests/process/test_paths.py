"""Programs that this user runs are never those of another one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.process.paths import write_program

TEXT = "#!/bin/sh\nexit 0\n"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "programs" / "python-1"


def test_a_program_is_written_once_and_may_be_run_by_everybody(program: Path) -> None:
    write_program(program, TEXT)
    first = program.stat()
    write_program(program, TEXT)
    assert (program.stat().st_ino, stat.S_IMODE(first.st_mode), program.read_text()) == (first.st_ino, 0o755, TEXT)
    assert list(program.parent.iterdir()) == [program]


def test_what_others_could_have_written_is_written_anew(program: Path, tmp_path: Path) -> None:
    for wrong in ("changed", "open", "link"):
        program.unlink(missing_ok=True)
        if wrong == "link":
            (tmp_path / "theirs").write_text(TEXT)
            program.symlink_to(tmp_path / "theirs")
        else:
            program.parent.mkdir(exist_ok=True)
            program.write_text("theirs" if wrong == "changed" else TEXT)
            program.chmod(0o777 if wrong == "open" else 0o755)
        write_program(program, TEXT)
        assert (program.is_symlink(), stat.S_IMODE(program.lstat().st_mode), program.read_text()) == (
            False,
            0o755,
            TEXT,
        )


def test_a_folder_of_this_user_is_closed_to_others(program: Path) -> None:
    program.parent.mkdir()
    program.parent.chmod(0o777)
    write_program(program, TEXT)
    assert stat.S_IMODE(program.parent.stat().st_mode) == 0o755


@ROOT
def test_a_program_of_another_user_is_not_run(program: Path) -> None:
    program.parent.mkdir()
    program.write_text(TEXT)
    program.chmod(0o755)
    os.chown(program, 12345, 12345)
    write_program(program, TEXT)
    assert program.stat().st_uid == os.geteuid()
    os.chown(program.parent, 12345, 12345)
    with pytest.raises(
        PenstockError, match=r"another user may change the programs.*Next: set PENSTOCK_CACHE to a folder"
    ):
        write_program(program, TEXT)
