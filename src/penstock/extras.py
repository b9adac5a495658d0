"""Which of Penstock's extras a missing module belongs to, and how to install it."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

from penstock.errors import PenstockError

MODULES = {
    "cassandra": "cql",
    "datasketches": "segments",
    "xxhash": "segments",
    "rich": "demo",
    "confluent_kafka": "demo",
    "orjson": "demo",
    "starlette": "connect",
    "uvicorn": "connect",
    "regex": "connect",
    "grpc_tools": "protobuf",
    "rocksdict": "rocksdb",
    "adbc_driver_postgresql": "postgres",
    "adbc_driver_manager": "postgres",
    "deltalake": "delta",
    "httptools": "ingest",
    "uvloop": "ingest",
    "msgspec": "ingest",
    "jsonschema_rs": "ingest",
    "venv_pack": "package",
}
"""The extra that brings a module; what needs it may bring more of them, by an extra of its own."""


class MissingExtra(PenstockError, ModuleNotFoundError):
    """A package is not installed that an extra brings."""


def missing(error: ModuleNotFoundError, what: str, extra: str | None = None) -> ModuleNotFoundError:
    """The error to raise for a module that `what` needs; `extra` is the one that brings all of its packages.

    An error that no extra can mend is returned as it is.
    """
    module = (error.name or "").partition(".")[0]
    if isinstance(error, PenstockError) or module not in MODULES:
        return error
    return MissingExtra(
        f"{what} needs the package {module}, which is not installed", next=f"run: {install(extra or MODULES[module])}"
    )


def install(extra: str) -> str:
    """The command that installs an extra, from where this Penstock came."""
    try:
        origin = json.loads(distribution("penstock").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    source = urlsplit(origin.get("url", ""))
    if source.scheme != "file":
        return f"pip install 'penstock[{extra}]'"
    path = unquote(source.path)
    return f"pip install {'-e ' if origin.get('dir_info', {}).get('editable') else ''}'{path}[{extra}]'"
