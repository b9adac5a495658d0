"""Reports errors of a user's file with the line of that file."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError


@contextmanager
def blame(file: str | Path) -> Iterator[None]:
    """Turn every exception into a `PenstockError` that names the last line of `file` in its traceback."""
    try:
        yield
    except PenstockError as error:
        places = [place for place in (_line(error, file), error.where) if place]
        raise type(error)(error.what, where=", ".join(places), next=error.next) from error
    except SyntaxError as error:
        raise PenstockError(f"SyntaxError: {error.msg}", where=f"{error.filename}, line {error.lineno}") from error
    except Exception as error:
        # Spark's messages continue with the whole query plan.
        said = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        raise PenstockError(said, where=_line(error, file) or str(file)) from error


def _line(error: BaseException, file: str | Path) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}, line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
