"""`penstock run FILE.py:PIPELINE`: loads a pipeline from a file and runs it until it is stopped."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType

from py4j.protocol import Py4JError
from pyspark import cloudpickle

from penstock.cli.arguments import add_checkpoints, positive
from penstock.errors import PenstockError
from penstock.log_lines import FORM, JSON, TEXT, Terminal, begin
from penstock.paths import is_file
from penstock.real_time import REAL_TIME
from penstock.run.checkpoint import lock
from penstock.run.life_signs import LifeSigns
from penstock.run.pipeline import Pipeline, blame
from penstock.run.supervise import PipelineRun, Stop
from penstock.session import end, jvm_process, session_of_program, start_workers
from penstock.signals import listen

log = logging.getLogger(__name__)

CORES = 2
SLOTS = 16
"""Tasks of real-time mode mostly wait, so there may be more of them than cores."""


def add(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE.py:PIPELINE", help="the file and the function marked with @pipeline")
    add_checkpoints(parser)
    parser.add_argument("--once", action="store_true", help="handle the data that is present now, then exit")
    parser.add_argument(
        "--cores",
        type=positive,
        metavar="N",
        help=f"cores for Spark (default: {CORES}; in real-time mode {SLOTS}, one for each partition of its topics)",
    )
    parser.add_argument("--verbose", action="store_true", help="write a line for each batch, and Spark's warnings")
    parser.add_argument(
        "--log", choices=(TEXT, JSON), default=TEXT, help="the form of the lines on standard error (default: text)"
    )
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    os.environ[FORM] = args.log
    lines = begin()
    try:
        _run(args, lines)
    except PenstockError as error:
        lines.status("")
        if args.log == TEXT:
            raise
        log.error("%s", error, extra={"event": "failed", "what": error.what, "where": error.where, "next": error.next})
        return 1
    return 0


def _run(args: Namespace, lines: Terminal) -> None:
    pipeline = load(args.target)
    stop = Stop(threading.Event(), threading.Event())
    listen(stop.gently, stop.now)
    checkpoint = args.checkpoints.resolve() / pipeline.name
    updated = lines if args.log == TEXT and sys.stderr.isatty() else None
    signs = LifeSigns(pipeline.name, verbose=args.verbose, terminal=updated)
    with lock(checkpoint) as note_jvm:
        signs.starts(checkpoint)
        in_real_time = pipeline.every == REAL_TIME
        cores = args.cores or (SLOTS if in_real_time else CORES)
        spark = session_of_program(pipeline.name, cores, args.verbose)
        if not in_real_time:
            start_workers(spark, cores)
        # Spark's own handler of Ctrl-C would cancel jobs and raise anywhere in the code.
        listen(stop.gently, stop.now)
        jvm = jvm_process(spark)
        note_jvm(jvm.pid)
        try:
            PipelineRun(pipeline, spark, checkpoint, stop, signs, args.once).supervise()
        except (Py4JError, OSError) as error:
            _explain(error, jvm, stop)
        finally:
            end(spark)
        signs.ended()


def _explain(error: Exception, jvm: subprocess.Popen[bytes], stop: Stop) -> None:
    """Handle an error of the connection to the JVM; ignored after a stop request, whose signal may also end the JVM."""
    if stop.gently.is_set():
        return
    if jvm.poll() is None:
        raise error
    raise PenstockError(
        "Spark's Java process ended",
        where=f"exit code {jvm.returncode}",
        next="run again: it continues from its checkpoint; if this repeats, find what kills it (memory?)",
    ) from error


def load(target: str) -> Pipeline:
    """Load the pipeline NAME from `FILE.py:NAME`; raises PenstockError if it is not there."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise PenstockError(
            f"{target!r} is not a pipeline", next="write FILE.py:NAME, with the name of a function marked @pipeline"
        )
    module = _load_file(Path(file))
    found = getattr(module, name, None)
    if isinstance(found, Pipeline):
        return found
    names = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
    step = f"choose from: {', '.join(names)}" if names else "mark a function with @penstock.pipeline(every=...)"
    what = f"there is no {name} in {file}" if found is None else f"{name} in {file} is not a pipeline"
    raise PenstockError(what, next=step)


def _load_file(file: Path) -> ModuleType:
    if not is_file(file):
        raise PenstockError(f"there is no file {file}", where=f"in {Path.cwd()}", next="check the path")
    path = file.resolve()
    _import_beside(path)
    # The prefix keeps a file called json.py from replacing that module.
    name = f"pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PenstockError(f"{file} is not a Python file", next="give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Spark's workers get the file's functions and classes by value: they could not import them by this name.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    with blame(path):
        spec.loader.exec_module(module)
    return module


def _import_beside(path: Path) -> None:
    """Let the file, also in Spark's workers, import modules from its own folder, as with `python FILE.py`."""
    folder = str(path.parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
