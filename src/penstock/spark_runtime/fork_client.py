"""The Python of Spark's workers: has the fork server make a process, and ends with it.

Spark runs this file in an interpreter without packages, which starts in a few hundredths of a second. What the server
does not take is run here.
"""

import os
import socket
import sys

SERVER = "PENSTOCK_FORK_SERVER"
"""Environment variable with the path of the server's socket."""
FOLDERS = "PENSTOCK_MODULES"
"""Environment variable with the folders of users' modules, which are searched last (`user_modules`)."""
AS_MODULE = (
    "import os, runpy, sys; from penstock.spark_runtime import user_modules; del sys.argv[0]; "
    "user_modules.import_from(os.environ); runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""What `python -m` does, with these folders behind all others and without the current one before them."""
PATIENCE = 10.0
"""Seconds until the server must have started the process; at first it loads the libraries."""
TAKEN = b"\0"


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"]:
        status = _forked(arguments[1:])
        if status is not None:
            sys.exit(status)
        if FOLDERS in os.environ:
            arguments = ["-P", "-c", AS_MODULE, *arguments[1:]]
    os.execv(sys.executable, [sys.executable, *arguments])


def _forked(arguments: list[str]) -> int | None:
    """The exit status of the process; None if the server started none."""
    environment = [name + b"=" + value for name, value in os.environb.items()]
    try:
        # pathlib would take longer to load than all the rest.
        folder = os.getcwdb()  # noqa: PTH109
        body = b"\0".join([str(len(arguments)).encode(), *map(os.fsencode, arguments), folder, *environment])
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PATIENCE)
            server.connect(os.environ[SERVER])
            socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(body)
            if server.recv(1) != TAKEN:
                return None
            server.settimeout(None)
            return (server.recv(1) or b"\1")[0]
    except (OSError, KeyError):
        return None


if __name__ == "__main__":
    main()
