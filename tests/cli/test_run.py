"""`penstock run` and `penstock connect` before Spark starts: which file, which pipeline, and what is refused."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock.cli.pipeline_file import load
from penstock.errors import PenstockError
from penstock.run.checkpoint import lock
from penstock.spark_runtime.fork_client import FOLDERS

Command = Callable[..., Any]
PIPELINE = """
import penstock
from beside_{name} import FACTOR

def times(number):
    return number * FACTOR

@penstock.pipeline(every="1 second")
def orders(spark):
    return []
"""


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files change the path of imports, and the loaded modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(FOLDERS, os.environ.get(FOLDERS, ""))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("pipeline_", "beside_")):
            del sys.modules[name]


def test_a_file_imports_modules_beside_it_also_in_workers(tmp_path: Path) -> None:
    (tmp_path / "beside_a.py").write_text("FACTOR = 7")
    (tmp_path / "a.py").write_text(PIPELINE.format(name="a"))
    found = load(f"{tmp_path}/a.py:orders")
    assert (found.name, found.every) == ("orders", timedelta(seconds=1))
    assert os.environ[FOLDERS].split(os.pathsep)[0] == sys.path[-1] == str(tmp_path)


def test_functions_of_a_file_go_to_workers_by_value(tmp_path: Path) -> None:
    (tmp_path / "beside_b.py").write_text("FACTOR = 6")
    (tmp_path / "b.py").write_text(PIPELINE.format(name="b"))
    load(f"{tmp_path}/b.py:orders")
    sent = cloudpickle.dumps(sys.modules["pipeline_b"].times)  # type: ignore[no-untyped-call]
    del sys.modules["pipeline_b"]
    assert pickle.loads(sent)(7) == 42


@pytest.mark.parametrize("text", ["from queue import FACTOR", "import queue; queue.FACTOR"])
def test_a_module_beside_a_file_with_a_taken_name_is_named(tmp_path: Path, penstock: Command, text: str) -> None:
    (tmp_path / "queue.py").write_text("FACTOR = 7")
    (tmp_path / "d.py").write_text(text)
    ran = penstock("run", f"{tmp_path}/d.py:orders")
    assert ran.code == 1 and ran.err.startswith(("penstock: ImportError: ", "penstock: AttributeError: "))
    assert f"({tmp_path}/d.py, line 1: {text}). Next: rename queue.py: Python, or a package" in ran.err


def test_a_relative_path_is_one_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.py").write_text("import penstock\n@penstock.pipeline(every='0 seconds')\ndef p(spark): ...\n")
    monkeypatch.chdir(tmp_path)
    assert load("c.py:p").name == "p"
    with pytest.raises(PenstockError, match=r"there is no file d\.py \(in .*\)\. Next: did you mean c\.py\?"):
        load("d.py:p")


@pytest.mark.parametrize("target", ["", "a.py", ":", "a.py:", "a.py:b c", "a.py:b-c", "a.py:1b", "a.py:b()"])
def test_a_target_is_a_file_and_a_name(penstock: Command, target: str) -> None:
    ran = penstock("run", target)
    assert ran.code == 1
    assert ran.err == (
        f"penstock: {target!r} is not a pipeline. "
        "Next: write FILE.py:NAME, with the name of a function marked @pipeline\n"
    )


@pytest.mark.parametrize("name", ["pipeline.txt", "pipeline"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, penstock: Command, name: str) -> None:
    (tmp_path / name).write_text("x = 1")
    ran = penstock("run", f"{tmp_path / name}:x")
    assert ran.code == 1 and "is not a Python file. Next: give a file whose name ends in .py\n" in ran.err


@pytest.mark.parametrize("name", ["folder", "x" * 300 + ".py", "a\0b.py"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, penstock: Command, name: str) -> None:
    (tmp_path / "folder").mkdir()
    ran = penstock("run", f"{tmp_path}/{name}:x")
    assert ran.code == 1 and ran.err.startswith("penstock: there is no file ") and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders = 5", "orders in .* is not a pipeline. Next: mark a function"),
        ("", "there is no orders in .*"),
        (
            "import sys\nsys.exit(0)",
            r"the file ends the program: sys.exit\(0\) \(.*line 2.*Next: remove",
        ),
        ("raise SystemError('no')", r"SystemError: no \(.*line 1: raise SystemError"),
        (
            "from penstock.errors import PenstockError\nraise PenstockError('own', next='do')",
            r"own \(.*line 2.*Next: do",
        ),
        ("import penstock\n@penstock.pipeline(every='soon')\ndef orders(s): ...", "every is not a duration: 'soon'"),
        ("import penstock\n@penstock.pipeline(every='1 day', name='a/b')\ndef orders(s): ...", "'a/b' is not a valid"),
    ],
    ids=str,
)
def test_an_error_of_the_file_is_one_line_with_its_line(
    tmp_path: Path, penstock: Command, text: str, said: str
) -> None:
    (tmp_path / "e.py").write_text(text)
    ran = penstock("run", f"{tmp_path}/e.py:orders")
    assert ran.code == 1 and ran.err.count("\n") == 1
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(ran.err)


def test_a_pipeline_that_runs_is_refused_before_spark_starts(tmp_path: Path, penstock: Command) -> None:
    (tmp_path / "f.py").write_text("import penstock\n@penstock.pipeline(every='0 seconds')\ndef p(spark): ...\n")
    with lock(tmp_path / "checkpoints" / "p"):
        ran = penstock("run", f"{tmp_path}/f.py:p", "--checkpoints", tmp_path / "checkpoints")
    assert ran.code == 1 and f"penstock: process {os.getpid()} already runs this pipeline" in ran.err
    assert "or run with another --checkpoints folder\n" in ran.err


def test_checkpoints_in_a_file_are_refused(tmp_path: Path, penstock: Command) -> None:
    (tmp_path / "f.py").write_text("import penstock\n@penstock.pipeline(every='0 seconds')\ndef p(spark): ...\n")
    ran = penstock("run", f"{tmp_path}/f.py:p", "--checkpoints", tmp_path / "f.py")
    assert ran.code == 1 and "penstock: the folder cannot be used: " in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--conf", "executor.memory=4g"], "'executor.memory=4g' is not a setting of Spark. Next: write NAME=VALUE"),
        (["--executor-memory", "4 GB"], "'4 GB' is not a size, as in 700m or 4g"),
        (["--executors", "0"], "'0' is not a number, 1 or more"),
        (["--state-memory", "lots"], "'lots' is not a size, as in 700m or 4g"),
    ],
)
def test_wrong_settings_of_spark_are_refused_before_the_file_is_loaded(
    words: list[str], said: str, penstock: Command
) -> None:
    ran = penstock("run", "a.py:orders", *words)
    assert ran.code == 2 and said in ran.err


CONNECT = ["--servers", "127.0.0.1:1", "--data"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.properties"], "there is no file missing.properties. Next: give the worker's properties file"),
        (["--listen", "127.0.0.1:8083"], "'127.0.0.1:8083' is not an address to listen at"),
        (["--listen", "https://127.0.0.1:8083"], "is not an address to listen at"),
        (["--listen", "http://127.0.0.1:65536"], "is not an address to listen at"),
    ],
    ids=str,
)
def test_a_worker_with_wrong_settings_does_not_start(
    tmp_path: Path, penstock: Command, words: list[str], said: str
) -> None:
    ran = penstock("connect", *CONNECT, tmp_path / "data", *words)
    assert ran.code == 1 and said in ran.err and not (tmp_path / "data").exists()


def test_a_worker_without_kafka_says_how_to_name_one(tmp_path: Path, penstock: Command) -> None:
    ran = penstock("connect", "--root", tmp_path)
    assert ran.code == 1 and f"No Kafka runs here ({tmp_path})" in ran.err
    (tmp_path / "worker.properties").write_text("group.id=a\n")
    ran = penstock("connect", tmp_path / "worker.properties")
    assert ran.code == 1 and "no Kafka is named" in ran.err and "give --servers" in ran.err


def test_a_second_worker_of_a_folder_is_refused_before_spark_starts(tmp_path: Path, penstock: Command) -> None:
    with lock(tmp_path / "data" / "worker"):
        ran = penstock("connect", *CONNECT, tmp_path / "data", "--listen", "http://127.0.0.1:0")
    assert ran.code == 1 and f"penstock: process {os.getpid()} already runs" in ran.err


def test_a_worker_whose_port_is_taken_does_not_start_spark(tmp_path: Path, penstock: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"http://127.0.0.1:{taken.getsockname()[1]}"
        ran = penstock("connect", *CONNECT, tmp_path / "data", "--listen", listen)
    assert ran.code == 1 and "stop what listens there, or choose another address\n" in ran.err
    with lock(tmp_path / "data" / "worker"):
        pass
