"""Folders that users choose, and what is told of one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.errors import PenstockError


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """For what is made and read of the folder itself, and not for the work that is done with it."""
    try:
        yield
    except OSError as error:
        raise PenstockError(
            f"the folder cannot be used: {error.strerror or error}",
            where=str(folder),
            next="give a folder that can be written",
        ) from error


def opened(file: Path) -> TextIO:
    """The file, to be read and appended to; it and its folder are made if they are not there."""
    with usable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a+")
