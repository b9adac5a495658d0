"""The breaks of the fault campaign without its servers: networks, disks, clocks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from waiting import PATIENCE, until

from campaign import breaks
from campaign.breaks import Clock, Disk
from campaign.network import network

HOST = "127.0.0.1"
APPEND = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "ab", buffering=0) as file:
            file.write(b"x" * 100)
        print("written", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that echoes its input."""
    server = [sys.executable, "-c", ECHO]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield int(process.stdout.readline())
        process.kill()


ECHO = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


def said(connection: socket.socket, text: bytes) -> bytes:
    """The answer; b"" if the connection is broken."""
    try:
        connection.sendall(text)
        return connection.recv(100)
    except ConnectionError:
        return b""


def test_a_cut_network_breaks_connections_and_refuses_new_ones_until_it_is_mended(echo: int) -> None:
    with network() as wires:
        port = wires.port("there", echo)
        assert wires.port("there", echo) == port
        assert wires.address("there", f"{HOST}:{echo}") == f"{HOST}:{port}"
        with closing(socket.create_connection((HOST, port), 10)) as connection:
            assert said(connection, b"hello\n") == b"hello\n"
            wires.cut("elsewhere")
            assert said(connection, b"again\n") == b"again\n"
            wires.cut("there")
            assert said(connection, b"lost\n") == b""
        with closing(socket.create_connection((HOST, port), 10)) as connection:
            assert said(connection, b"refused\n") == b""
        wires.mend("there")
        with closing(socket.create_connection((HOST, port), 10)) as connection:
            assert said(connection, b"back\n") == b"back\n"


@pytest.mark.parametrize("mountable", [True, False], ids=["a small file system", "a limit on file sizes"])
def test_a_full_disk_refuses_writes_until_there_is_room(
    mountable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mountable:
        monkeypatch.setattr("shutil.which", lambda name: None)
    disk = Disk(tmp_path / "small")
    if mountable and not disk.mounted:
        pytest.skip("this user may not mount a file system")
    command = [sys.executable, "-c", APPEND, str(tmp_path / "small" / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:

        def write() -> str:
            assert writer.stdin and writer.stdout
            writer.stdin.write("go\n")
            writer.stdin.flush()
            return writer.stdout.readline().strip()

        try:
            assert write() == "written"
            undo = disk.fill(writer.pid)
            assert [write() for _ in range(50)][-1].isdecimal()
            undo()
            assert write() == "written"
        finally:
            disk.close()
            writer.kill()


@pytest.mark.skipif(not breaks.faketime(), reason="needs libfaketime 0.9.11 or newer; set FAKETIME_LIBRARY to its path")
def test_a_clock_jumps_and_comes_back_while_a_process_runs(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    tell = "import sys, time\nfor line in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", tell],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment,
    ) as process:

        def ahead() -> float:
            assert process.stdin and process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            assert abs(monotonic - time.monotonic()) < PATIENCE
            return wall - time.time()

        try:
            assert abs(ahead()) < 10
            clock.set(-3600)
            assert abs(ahead() + 3600) < 10
            clock.set(0)
            assert abs(ahead()) < 10
        finally:
            process.kill()


def test_paused_processes_go_on() -> None:
    count = "import time, sys\nwhile True: print(1, flush=True); time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", count], stdout=subprocess.DEVNULL) as process:
        state = Path(f"/proc/{process.pid}/stat")
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: state.read_text().rsplit(")")[1].split()[0] == "T", "pause")
        breaks.resume([process.pid, 1 << 22])
        until(lambda: state.read_text().rsplit(")")[1].split()[0] != "T", "end of the pause")
        process.kill()
