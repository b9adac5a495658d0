"""Loads a pipeline from a user's Python file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.process.paths import is_file
from penstock.run.pipeline import Pipeline, blame
from penstock.spark_runtime.pickled import send_by_value
from penstock.spark_runtime.user_modules import add_folder


def load(target: str) -> Pipeline:
    """Load the pipeline NAME from `FILE.py:NAME`; raises PenstockError if it is not there."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise PenstockError(
            f"{target!r} is not a pipeline", next="write FILE.py:NAME, with the name of a function marked @pipeline"
        )
    module = _load_file(Path(file))
    attribute = getattr(module, name, None)
    if isinstance(attribute, Pipeline):
        return attribute
    names = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
    step = f"choose from: {', '.join(names)}" if names else "mark a function with @penstock.pipeline(every=...)"
    what = f"there is no {name} in {file}" if attribute is None else f"{name} in {file} is not a pipeline"
    raise PenstockError(what, next=step)


def _load_file(file: Path) -> ModuleType:
    if not is_file(file):
        raise PenstockError(f"there is no file {file}", where=f"in {Path.cwd()}", next=_near(file))
    path = file.resolve()
    # Modules beside the file are found, also in Spark's workers, as with `python FILE.py`, but after all others.
    add_folder(str(path.parent))
    # The prefix keeps a file called json.py from replacing that module.
    name = f"pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PenstockError(f"{file} is not a Python file", next="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Spark's workers get the file's functions and classes by value: they could not import them by this name.
    send_by_value(module)
    try:
        with blame(path):
            spec.loader.exec_module(module)
    except PenstockError as error:
        raise _taken_name(error, path) from error.__cause__
    return module


def _near(file: Path) -> str:
    with suppress(OSError, ValueError):
        beside = [str(path) for path in file.parent.glob("*.py")]
        if close := get_close_matches(str(file), beside, 1):
            return f"did you mean {close[0]}?"
    return "check the path"


def _taken_name(error: PenstockError, path: Path) -> PenstockError:
    """The error; it says so if a module beside the file was meant, and another of the same name was imported."""
    cause = error.__cause__
    name = cause.name if isinstance(cause, ImportError) else getattr(getattr(cause, "obj", None), "__name__", None)
    beside, module = path.with_name(f"{name}.py"), sys.modules.get(str(name))
    if not isinstance(cause, ImportError | AttributeError) or not module or not is_file(beside):
        return error
    if getattr(module, "__file__", None) == str(beside):
        return error
    next = f"rename {beside.name}: Python, or a package that is installed, has a module of this name, which comes first"
    return PenstockError(error.what, where=error.where, next=next)


def lacks_session(error: PenstockError) -> bool:
    """Whether a file could not be loaded because Spark's own code found no session, for the file or for Penstock."""
    return not SparkSession.getActiveSession() and any(map(_is_of_no_session, _causes(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What the error was raised from, or while handling it, and so on."""
    while cause := error.__cause__ or error.__context__:
        yield cause
        error = cause


def _is_of_no_session(cause: BaseException) -> bool:
    if not isinstance(cause, AssertionError | PySparkRuntimeError) or cause.__traceback__ is None:
        return False
    last = traceback.extract_tb(cause.__traceback__)[-1]
    return Path(last.filename).is_relative_to(Path(pyspark.__file__).parent)
