"""A server that forks the Python processes of a Spark session from one that has loaded their libraries.

Spark starts a process for each stream that it reads, each stage with state and each look at a source, and each of them
loads PySpark: most of a second of CPU. A copy of a process that has loaded it is there in hundredths of a second and
shares its memory. Spark runs `fork_client` in place of Python, which asks for such a copy and hands over its arguments,
environment, folder and standard streams.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from penstock.process import log_lines
from penstock.process.paths import write_program
from penstock.spark_runtime import fork_client, user_modules, worker_waits
from penstock.spark_runtime.fork_client import SERVER, TAKEN

LIBRARIES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "penstock.keyed_state.buckets",
    "penstock.cdc.cdc_source",
    "penstock.kafka.kafka_source",
)
"""Modules that Spark's processes need; none of them starts a thread of Python, which a fork would not copy."""
PATIENCE = 5.0
"""Seconds until a client must have sent its request."""
MOST = 1 << 20
"""Bytes of a request."""

DAEMON = "pyspark.daemon"
"""The daemon of the workers that look up, create and plan data sources; it would stay for the life of the session."""
TALKATIVE = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""It prints each of its steps, which Spark passes on to the program's standard error."""
IDLE = 10.0
PREFIX = "penstock-fork-"
WAITS = "waits"
"""The socket for what the processes wait for."""
WORKER = "penstock.spark_runtime.daemon"
"""The module of Spark's Python workers and of their daemon."""
WORKER_NAME = "penstock.workers"[:15]
"""What the kernel shows of them."""
STARTING = 60.0
"""Seconds in which a new server surely listens."""

SEED = os.environ.get("PYTHONHASHSEED", "")

_server: subprocess.Popen[bytes] | None = None


def start(programs: Path, idle: float = IDLE) -> Path:
    """Start the server of this process, which ends with it; returns the program for PYSPARK_PYTHON.

    The program is a file in the folder `programs`; it also works when the server has ended. The program is Python
    itself on another system than Linux, whose libraries need not survive a fork, and where the system gives no socket
    or runs no files of that folder. After `idle` seconds without a worker Spark's own daemons end; Spark starts one
    again when it needs it.
    """
    global _server
    python = Path(sys.executable)
    if sys.platform != "linux":
        return python
    program = _program(programs, python)
    if not os.access(program, os.X_OK):
        return python
    if _server is None:
        try:
            _server = _started(idle)
        except OSError:
            return python
    return program


def _program(folder: Path, python: Path) -> Path:
    """The script that runs the client; it stays, as other processes may have its path."""
    text = f'#!/bin/sh\nexec {shlex.quote(str(python))} -I -S {shlex.quote(fork_client.__file__)} "$@"\n'
    program = folder / f"python-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    write_program(program, text)
    return program


def _sweep() -> None:
    """Remove the folders of servers that were killed: nobody listens at their sockets."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as caller:
            # A newer one may not listen yet.
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < STARTING:
                continue
            caller.setblocking(False)
            if caller.connect_ex(str(folder / "socket")) in (errno.ECONNREFUSED, errno.ENOENT):
                shutil.rmtree(folder, ignore_errors=True)


def _started(idle: float) -> subprocess.Popen[bytes]:
    _sweep()
    path = Path(tempfile.mkdtemp(prefix=PREFIX)) / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        # Clients wait until the server has loaded the libraries.
        listener.listen(128)
        worker_waits.listen(path.with_name(WAITS))
        os.environ[SERVER] = str(path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(listener.fileno()), str(path), str(idle)],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            # Spark gives its workers the same seed.
            env=os.environ | {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "PYTHONUNBUFFERED": "YES"},
            # Ctrl-C is for the program, which stops its queries first.
            start_new_session=True,
        )


def end() -> None:
    """End the server and the processes that it started."""
    global _server
    if _server is not None:
        _server.communicate()
        _server = None
        worker_waits.close()


@dataclass(frozen=True)
class ForkRequest:
    """A module to run, as its name with arguments, and the file descriptors of its standard streams."""

    streams: list[int]
    arguments: list[str]
    folder: str
    environment: dict[str, str]


class Server:
    """Serves requests until its standard input ends."""

    def __init__(self, listener: socket.socket, idle: float) -> None:
        self._listener, self._idle = listener, idle
        self._running: dict[int, socket.socket] = {}  # a client's connection by the process of its request
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()

    def run(self) -> None:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for each in (sys.stdin, self._listener, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    # The processes that end now wake nobody: the socket for that is closed with this one.
                    signal.set_wakeup_fd(-1)
                    return self._end_all()
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.data in self._running:
                    # A client sends nothing more: it has ended, and its process has to.
                    _end_process(key.data)
                    self._selector.unregister(key.fileobj)

    def _accept(self) -> None:
        """Fork for a request. What is refused closes the connection: its client then runs Python itself."""
        client, _ = self._listener.accept()
        try:
            request = _request(client)
        except (OSError, ValueError, IndexError):
            client.close()
            return
        # Python reads the seed when it starts.
        wanted = request.environment.get("PYTHONHASHSEED", SEED) == SEED and _waits(client)
        try:
            pid = _fork() if wanted else None
        except OSError:
            pid = None
        if pid == 0:
            client.close()
            self._become(request)
        for stream in request.streams:
            os.close(stream)
        if pid is None:
            client.close()
            return
        with suppress(OSError):
            client.send(TAKEN)
        self._running[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)

    def _become(self, request: ForkRequest) -> NoReturn:
        """Run the requested module in this process, which is new."""
        status = 1
        try:
            self._leave()
            _stand_for(request)
            if request.arguments[0] == DAEMON:
                _end_without_children(self._idle)
            # It has to be loaded again, as its code runs then.
            sys.modules.pop(request.arguments[0], None)
            initial_globals = {"print": _nothing} if request.arguments[0] == TALKATIVE else None
            runpy.run_module(request.arguments[0], initial_globals, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else bool(end.code)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status & 0xFF)

    def _leave(self) -> None:
        """Close what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listener, self._woken, self._wake, *self._running.values()):
            each.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client = self._running.pop(pid)
                with suppress(OSError):
                    client.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
                with suppress(KeyError):
                    self._selector.unregister(client)
                client.close()

    def _end_all(self) -> None:
        for pid in self._running:
            _end_process(pid)


def _request(client: socket.socket) -> ForkRequest:
    """What a client sent, with its standard streams; raises ValueError if it is not a whole request."""
    client.settimeout(PATIENCE)
    head, streams, _, _ = socket.recv_fds(client, 4, 3)
    try:
        size = int.from_bytes(head, "big")
        if len(head) != 4 or len(streams) != 3 or size > MOST:
            raise ValueError("this is not a request")
        body = b""
        while len(body) < size:
            some = client.recv(size - len(body))
            if not some:
                raise ValueError("the request ends early")
            body += some
        count, *parts = map(os.fsdecode, body.split(b"\0"))
        arguments, folder, environment = parts[: int(count)], parts[int(count)], parts[int(count) + 1 :]
        return ForkRequest(streams, arguments, folder, dict(each.split("=", 1) for each in environment))
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def _fork() -> int:
    with warnings.catch_warnings():
        # From Python 3.12 on it warns of each thread. OpenBLAS and jemalloc have some, and prepare them for a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _waits(client: socket.socket) -> bool:
    """Whether the client is still there; it has run Python itself if the server answered too late."""
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _nothing(*arguments: object, **how: object) -> None:
    """Instead of `print`."""


def _stand_for(request: ForkRequest) -> None:
    """Take the client's streams, environment, folder and arguments."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    sys.argv = request.arguments
    more = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [each for each in more if each and each not in sys.path]
    # A user's file must not stand for a module of the same name in the imports of the libraries.
    user_modules.import_from(request.environment)
    sys.path.append(request.folder)
    # The name that ps and top show, in 15 bytes; only Linux has this file.
    with suppress(OSError):
        module = request.arguments[0]
        name = WORKER_NAME if module == WORKER else module.removeprefix("pyspark.sql.streaming.")
        Path("/proc/self/comm").write_text(name)


def _end_without_children(idle: float) -> None:
    """Have this process end itself when it has had no child for `idle` seconds; forks of it do not inherit that."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")

    def look(number: int, frame: object) -> None:
        if not children.read_text():
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, idle, idle)


def _end_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def main() -> None:
    for name in LIBRARIES:
        # Packages that some of ours need may be missing.
        with suppress(ImportError):
            import_module(name)
    log_lines.begin()
    worker_waits.send_to(Path(sys.argv[2]).with_name(WAITS))
    # What is loaded stays: without this, each copy's garbage collector would write to all of it, and copy it.
    gc.collect()
    gc.freeze()
    try:
        Server(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[3])).run()
    finally:
        shutil.rmtree(Path(sys.argv[2]).parent, ignore_errors=True)


if __name__ == "__main__":
    main()
