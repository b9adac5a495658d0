"""A trial of a pipeline: faults that do not depend on each other are reported at once, as `penstock check` does.

On trial an error of a public function is noted, and the result of the call is a stand-in, which is unknown and takes
every call, so that the pipeline's code goes on to its next table or sink. Errors caused by a stand-in are not reported.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from penstock.errors import Missing, PenstockError

LONGEST_CODE = 160
"""Characters of a user's code in an error."""
OPERATORS = "add radd sub rsub mul rmul truediv rtruediv mod neg and rand or ror invert lt le gt ge"


class Unknown:
    """Stands in for what a call that failed should have made: each attribute, item and call of it is unknown, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Unknown:
        return self

    def __getitem__(self, name: Any) -> Unknown:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


for _operator in OPERATORS.split():
    setattr(Unknown, f"__{_operator}__", Unknown.__call__)


class Trial:
    """The faults of a trial; `is_final` says of which errors the trial ends."""

    def __init__(self, is_final: Callable[[PenstockError], bool]) -> None:
        self.faults: list[PenstockError] = []
        self.is_final, self._inside = is_final, False

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a public function, or a stand-in for it."""
        if self._inside:
            return function(*args, **kwargs)
        unknown = _has_unknown([*args, *kwargs.values()])
        self._inside = True
        try:
            returned = function(*args, **kwargs)
            return Unknown() if unknown else returned
        except Exception as error:
            self._take(error, unknown)
            return Unknown()
        finally:
            self._inside = False

    def _take(self, error: Exception, unknown: bool) -> None:
        """Note an error, or raise it if the trial ends with it. A table is missing whatever else is unknown."""
        if unknown and not isinstance(error, Missing):
            return
        # A server that is away is away for the next call, too.
        if not isinstance(error, PenstockError) or error.retriable or self.is_final(error):
            raise error
        # The caller of the public function: between them are its mark, and `call`.
        caller = sys._getframe(3)
        where = ", ".join(filter(None, (place(caller, caller.f_lasti), error.where)))
        self.faults.append(PenstockError(error.what, where=where, next=error.next))


_TRIAL: ContextVar[Trial | None] = ContextVar("trial", default=None)


def running() -> Trial | None:
    """The trial that this code is part of."""
    return _TRIAL.get()


@contextmanager
def on_trial(is_final: Callable[[PenstockError], bool]) -> Iterator[Trial]:
    """Public functions that are called inside are on trial; raises PenstockError at the end if there were faults.

    An error that ends the code inside is reported beside faults only if no stand-in can be its reason.
    """
    trial = Trial(is_final)
    token = _TRIAL.set(trial)
    try:
        yield trial
    except Exception as error:
        if not trial.faults:
            raise
        if isinstance(error, PenstockError) and (error.retriable or _is_refusal(error.__cause__)):
            trial.faults.append(error)
    finally:
        _TRIAL.reset(token)
    require_none(trial.faults)


def require_none(faults: list[PenstockError]) -> None:
    """Raise the fault, or one PenstockError with all of them."""
    texts = list(dict.fromkeys(map(str, faults)))
    if len(texts) == 1:
        raise faults[0]
    if texts:
        listed = "".join(f"\n  {number}. {text}" for number, text in enumerate(texts, 1))
        raise PenstockError(f"there are {len(texts)} faults:{listed}")


def place(frame: FrameType, at: int) -> str:
    """Where the instruction `at` of a frame is in a file, with its expression in one line, also if it has several."""
    file, (first, last, _, _) = frame.f_code.co_filename, list(frame.f_code.co_positions())[at // 2]
    numbers = range(first or 0, (last or first or 0) + 1)
    text = " ".join(filter(None, (linecache.getline(file, number).strip() for number in numbers)))
    code = text.rstrip(",") if len(text) <= LONGEST_CODE else f"{text[:LONGEST_CODE]}..."
    return f"{file}, line {first}: {code}"


def _has_unknown(values: list[Any]) -> bool:
    inner = [element for value in values if isinstance(value, (list, tuple)) for element in value]
    return any(isinstance(value, Unknown) for value in values) or (bool(inner) and _has_unknown(inner))


def _is_refusal(error: BaseException | None) -> bool:
    """Whether Spark refuses a frame that is known: of a stand-in it does not say that it lacks a column."""
    return type(error).__name__ in ("AnalysisException", "ParseException")
