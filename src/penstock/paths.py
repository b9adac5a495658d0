"""Files and folders that users choose, and what is told of one that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from penstock.errors import PenstockError


@contextmanager
def usable(
    place: Path, what: str = "the folder cannot be used", next: str = "give a folder that can be written"
) -> Iterator[None]:
    """For what is made and read of the place itself, and not for the work that is done with it."""
    try:
        yield
    except OSError as error:
        raise PenstockError(f"{what}: {error.strerror or error}", where=str(place), next=next) from error


def is_file(path: str | Path) -> bool:
    """Whether there is a file that this user can see; a text that is not a path, or is too long for one, names none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def opened(file: Path) -> TextIO:
    """The file, to be read and appended to; it and its folder are made if they are not there."""
    with usable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a+")
