"""Files and folders that users choose, and the error for one that cannot be used."""

from __future__ import annotations

import os
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
    """Write a program that everybody may run, unless the file exists; it is there whole or not at all.

    The file stays when this process ends, as others may have its path: its name has to depend on its text.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(file)
