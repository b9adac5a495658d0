"""Free ports on the loopback address, and the process that listens on a port that is taken."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError

HOST = "127.0.0.1"

# Below the range of ports that systems use for outgoing connections, so that a service that is started again after a
# fault finds its port still free.
RANGE = range(20_000, 32_000)
PATIENCE = 5.0  # seconds
LISTENING = "0A"  # the state column of /proc/net/tcp


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def becomes_free(port: int) -> bool:
    """Whether a port is or soon becomes free: a process that was just killed holds its port for a moment longer."""
    deadline = time.monotonic() + PATIENCE
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def free(taken: set[int]) -> int:
    """A free port that is not one of `taken`."""
    for port in random.sample(RANGE, 200):
        if port not in taken and is_free(port):
            return port
    raise PenstockError(
        "No free port found",
        where=f"{HOST}, {RANGE.start} to {RANGE.stop}",
        next="give the ports, see penstock up --help",
    )


def require_free(port: int, service: str, option: str) -> None:
    if not is_free(port):
        raise PenstockError(
            f"Port {port} for {service} is taken by {holder(port) or 'another program'}",
            where=f"{HOST}:{port}",
            next=f"stop it or choose another port with {option}",
        )


def holder(port: int) -> str | None:
    """Name and pid of the program that listens on a port; None outside Linux and for other users' processes."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # another user's process, or gone
            if any(str(handle.readlink()) in sockets for handle in (process / "fd").iterdir()):
                program = (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                return f"{Path(program).name} (pid {process.name})"
    return None


def _listening(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes
