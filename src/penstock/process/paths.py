"""Files and folders that users choose, and the error for one that cannot be used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.errors import PenstockError


@contextmanager
def usable(
    place: Path, what: str = "the folder cannot be used", next: str = "give a folder that can be written"
) -> Iterator[None]:
    """Raise an OSError inside as a `PenstockError`; put only the access to the path itself inside, not work with it."""
    try:
        yield
    except OSError as error:
        raise PenstockError(f"{what}: {error.strerror or error}", where=str(place), next=next) from error


def is_file(path: str | Path) -> bool:
    """Whether the path is a file that this user can see; False for a string that is not a path or is too long."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def opened(file: Path) -> TextIO:
    """Open the file to read and append; creates it and its folder if they do not exist."""
    with usable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a+")


def write_program(file: Path, text: str) -> None:
    """Write a program that everybody may run, unless it is there; it is there whole or not at all.

    The file stays when this process ends, as others may have its path: its name has to depend on its text. Raises
    PenstockError if it belongs to another user, who could have this one run anything.
    """
    with usable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        _keep_others_out(file.parent)
        if _is_ours(file, text):
            return
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        with fresh.open("x") as out:
            out.write(text)
        fresh.chmod(0o755)
        fresh.rename(file)


def _keep_others_out(folder: Path) -> None:
    """Take from others the right to write to a folder of this user; raises PenstockError for one of another user."""
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and status.st_uid != os.geteuid()):
        raise PenstockError(
            "another user may change the programs in this folder, which this user would run",
            where=str(folder),
            next="set PENSTOCK_CACHE to a folder that only you may write to",
        )
    if status.st_mode & 0o022:
        folder.chmod(status.st_mode & 0o7755)


def _is_ours(file: Path, text: str) -> bool:
    try:
        status = file.lstat()
        safe = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
        return safe and file.read_text() == text
    except (FileNotFoundError, UnicodeDecodeError):
        return False
