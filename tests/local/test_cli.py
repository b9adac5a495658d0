"""The command line for users: fast help, one line for an error, exit codes."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli.main import COMMANDS, main
from penstock.cli.warm import PARTS, is_first_use


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_names_every_command() -> None:
    answer = penstock("--help")
    assert answer.returncode == 0
    assert all(re.search(rf"(?m)^    {name}\s", answer.stdout) for name in COMMANDS)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    answer = penstock(name, "--help")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"usage: penstock {name} ")


def test_help_does_not_load_spark() -> None:
    code = "import sys; from penstock.cli.main import _parser; _parser('up'); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version() -> None:
    assert penstock("--version").stdout == f"penstock {__version__}\n"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("arguments", [("nonsense",), ("up", "--kafka-port", "99999"), ("up", "--only", "redis")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    answer = penstock(*arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage: penstock")


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = penstock("up", "--root", tmp_path, "--only", "kafka", "--kafka-port", server.getsockname()[1])
    assert answer.returncode == 1
    assert answer.stderr.startswith("penstock: Port ")
    assert answer.stderr.count("\n") == 1


def test_status_and_down_where_nothing_ever_ran(tmp_path: Path) -> None:
    root = tmp_path / "never"
    status = penstock("status", "--root", root)
    assert (status.returncode, status.stdout) == (1, "cassandra  stopped\nkafka      stopped\n")
    down = penstock("down", "--root", root)
    assert (down.returncode, down.stdout) == (0, "nothing was running\n")
    assert not root.exists()


@pytest.mark.parametrize(
    "command", [("up",), ("down",), ("status",), ("topics", "list"), ("segment", "tables", "--keyspace", "k")]
)
def test_a_root_that_is_no_folder_is_told(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main([*command, "--root", str(file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock: the folder cannot be used: ")
    assert said.endswith(f" ({file}). Next: give a folder that can be written\n")


def test_a_root_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert main(["up", "--root", str(tmp_path / "loop")]) == 1
    assert "penstock: the folder cannot be used: " in capsys.readouterr().err


def test_the_first_use_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_first_use()
    assert is_first_use(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/loops.one-1.py311.nbi").touch()
    assert not is_first_use(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "none"))
    assert is_first_use(tmp_path)


def test_compile_takes_the_names_of_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "tables"]) == 0
    assert re.fullmatch(r"compiling tables \.\.\.\ncompiled tables in [0-9.]+ s\n", capsys.readouterr().out)
    assert main(["compile", "tables", "table"]) == 1
    assert capsys.readouterr().err.startswith("penstock: there is nothing to compile for table. Next: use kafka-client")


@pytest.mark.slow
def test_compile_leaves_no_file_of_loops_out() -> None:
    code = """
import sys
from penstock.cli.main import main
main(["compile"])
print(*sys.modules, file=sys.stderr)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    compiled = [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("compiled ")]
    assert compiled == list(PARTS)
    source = Path(__file__).parents[2] / "src"
    files = (file for file in source.rglob("*.py") if re.search(r"\n@(compiled|uncounted)\n", file.read_text()))
    assert {".".join(file.relative_to(source).with_suffix("").parts) for file in files} <= set(answer.stderr.split())
