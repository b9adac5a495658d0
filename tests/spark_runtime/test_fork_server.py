"""The processes that stand for Python: they run what they are asked to, and none outlives who asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import PATIENCE, until

from penstock.spark_runtime import fork_server
from penstock.spark_runtime.fork_client import FOLDERS, SERVER

TOLD = """
import json, os, sys
found = [sys.argv[1:], os.getcwd(), os.environ["TOLD"], sys.stdin.read(), os.getppid(), "pyspark" in sys.modules]
print(json.dumps(found))
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAITS = """
import os, sys, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # A session of this process has a server that has to stay.
    kept, fork_server._server = fork_server._server, None
    address = os.environ.get(SERVER)
    try:
        made = fork_server.start(tmp_path_factory.mktemp("programs"), idle=0.5)
        refused()
        yield made
    finally:
        fork_server.end()
        fork_server._server = kept
        os.environ.pop(SERVER)
        if address:
            os.environ[SERVER] = address


def test_the_folder_of_a_killed_server_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new, other = (tmp_path / f"{fork_server.PREFIX}{name}" for name in ("left", "new", "other"))
    for folder in (left, new, other):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(folder / "socket"))
    with socket.socket(socket.AF_UNIX) as listener:
        (other / "socket").unlink()
        listener.bind(str(other / "socket"))
        listener.listen()
        for folder in (left, other):
            os.utime(folder, (0, 0))
        fork_server._sweep()
    assert sorted(tmp_path.iterdir()) == [new, other]


def refused(sent: bytes = b"") -> None:
    """Send what is no request: an answer shows that the server has loaded what it shares.

    A client that waits too long runs Python itself.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(os.environ[SERVER])
        socket.send_fds(client, [sent], [0, 1, 2]) if sent else None
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Writes a module and returns the environment in which Python finds it."""

    def write(text: str) -> dict[str, str]:
        (tmp_path / "asked.py").write_text(textwrap.dedent(text))
        return os.environ | {"PYTHONPATH": str(tmp_path), "TOLD": "here"}

    return write


def test_a_module_runs_as_python_would_run_it(
    program: Path, tmp_path: Path, module: Callable[[str], dict[str, str]]
) -> None:
    environment = module(TOLD)

    def told(python: str | Path) -> tuple[int, list[object], str]:
        ran = subprocess.run(
            [python, "-m", "asked", "7", "a b", ""],
            env=environment,
            cwd=tmp_path,
            input="said",
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, json.loads(ran.stdout), ran.stderr

    status, [*same, _, loaded], errors = told(sys.executable)
    assert (status, same, loaded) == (7, [["7", "a b", ""], str(tmp_path), "here", "said"], False)
    assert fork_server._server
    assert told(program) == (status, [*same, fork_server._server.pid, True], errors)


@pytest.mark.parametrize("arguments", [["-c", "print(2 + 3)"], ["-m", "calendar", "2026", "11"]])
def test_other_commands_run_too(program: Path, arguments: list[str]) -> None:
    found, wanted = [subprocess.check_output([each, *arguments]) for each in (program, sys.executable)]
    assert found == wanted


@pytest.mark.parametrize("seed", ["0", "12"], ids=["forked", "by Python itself"])
def test_a_module_of_a_user_stands_for_no_other(program: Path, tmp_path: Path, seed: str) -> None:
    """Neither one of the user's folder nor one of the current folder, which are the same here."""
    for name in ("json", "numbers", "pyspark", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('not this one')")
    (tmp_path / "asked.py").write_text("import json, numbers, sys, pyspark.daemon\nprint(json.dumps(sys.argv[1:]))")
    environment = os.environ | {FOLDERS: str(tmp_path), "PYTHONHASHSEED": seed}
    assert subprocess.check_output([program, "-m", "asked", "7"], env=environment, cwd=tmp_path) == b'["7"]\n'


def test_a_daemon_of_spark_ends_when_it_has_no_workers(program: Path) -> None:
    command = [str(program), "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"]
    secret = {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | secret, start_new_session=True
    ) as daemon:
        assert daemon.stdout
        port = int.from_bytes(daemon.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port)) as worker:
            # A worker that waits for its secret: the daemon has a child.
            pid = int.from_bytes(worker.recv(4), "big")
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.wait(2)
            os.kill(pid, signal.SIGKILL)
        assert daemon.wait(PATIENCE) == 1


def test_an_error_is_told_as_python_tells_it(program: Path, module: Callable[[str], dict[str, str]]) -> None:
    environment = module("raise ValueError('wrong')")
    ran = subprocess.run([program, "-m", "asked"], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "ValueError: wrong")


def test_a_module_that_the_server_has_loaded_runs_without_a_warning(program: Path) -> None:
    ran = subprocess.run([program, "-m", "penstock.keyed_state.buckets"], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ends_with_the_one_that_stands_for_it(
    program: Path, module: Callable[[str], dict[str, str]], number: signal.Signals
) -> None:
    with subprocess.Popen([program, "-m", "asked"], env=module(WAITS), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        pid = int(client.stdout.readline())
        assert pid != client.pid
        client.send_signal(number)
        client.wait()
        until(lambda: not is_running(pid), "end of the process")


def test_who_stands_for_a_process_ends_with_it(program: Path, module: Callable[[str], dict[str, str]]) -> None:
    with subprocess.Popen([program, "-m", "asked"], env=module(WAITS), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        os.kill(int(client.stdout.readline()), signal.SIGKILL)
        assert client.wait(PATIENCE) == (-signal.SIGKILL) & 0xFF


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\xff" * 8, b"\0\0\0\4abc", b"\0\0\0\4a\0b\0", b"\0\0\0\3\x009\0"])
def test_what_is_no_request_ends_its_own_connection(program: Path, sent: bytes) -> None:
    refused(sent)
    assert subprocess.check_output([program, "-m", "calendar", "2026"])


def test_a_client_that_went_away_gets_no_process(
    program: Path, tmp_path: Path, module: Callable[[str], dict[str, str]]
) -> None:
    environment = module("from pathlib import Path; Path('ran').touch()")
    parts = ["1", "asked", str(tmp_path), *(f"{name}={value}" for name, value in environment.items())]
    body = "\0".join(parts).encode()
    assert fork_server._server
    fork_server._server.send_signal(signal.SIGSTOP)
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.environ[SERVER])
            socket.send_fds(client, [len(body).to_bytes(4, "big") + body], [0, 1, 2])
    fork_server._server.send_signal(signal.SIGCONT)
    # The server takes this one after all of them.
    assert subprocess.check_output([program, "-m", "calendar", "2026"])
    assert not (tmp_path / "ran").exists()


def test_another_hash_seed_has_an_interpreter_of_its_own(
    program: Path, module: Callable[[str], dict[str, str]]
) -> None:
    environment = module("import sys; print(hash('a'), 'pyspark' in sys.modules)")

    def shown(python: str, seed: str) -> list[str]:
        asked = environment | {"PYTHONHASHSEED": seed}
        return subprocess.check_output([python, "-m", "asked"], env=asked, text=True).split()

    for seed, loaded in (("0", "True"), ("12", "False")):
        assert shown(str(program), seed) == [shown(sys.executable, seed)[0], loaded]


def test_all_end_with_the_program_that_is_killed(tmp_path: Path, module: Callable[[str], dict[str, str]]) -> None:
    text = f"""
    import subprocess, time
    from pathlib import Path
    from penstock.spark_runtime import fork_server
    program = fork_server.start(Path({str(tmp_path)!r}))
    asked = subprocess.Popen([program, "-m", "asked"], stdout=subprocess.PIPE, text=True)
    print(program, fork_server._server.pid, asked.pid, asked.stdout.readline(), flush=True)
    time.sleep(600)
    """
    environment = module(WAITS)
    command = [sys.executable, "-c", textwrap.dedent(text)]
    environment["PYTHONPATH"] += os.pathsep + os.pathsep.join(sys.path)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout
        program, *pids = user.stdout.readline().split()
        user.kill()
    for pid in map(int, pids):
        until(lambda pid=pid: not is_running(pid), f"end of process {pid}")  # type: ignore[misc]
    # The program works on: another process may have its path.
    assert subprocess.check_output([program, "-m", "calendar", "2026"], env=environment)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False
    return state != "Z"
