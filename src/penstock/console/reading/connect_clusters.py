"""Connectors of Kafka Connect clusters, Penstock's or any other, by their REST API.

What a cluster answers is taken field by field, as `run_status` does. Secrets in configurations are hidden. An action
waits until its result shows, and reports it: a restart that changed nothing would look like one that worked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from penstock.console.reading.masking import Mask
from penstock.console.reading.run_status import NAME, TRACE, list_of, map_of, number, record, text
from penstock.errors import PenstockError
from penstock.process.secret_settings import HIDDEN, has_secret_name, without_logins
from penstock.serve.http_client import Address, HttpAnswer, TooLargeAnswer, fetch

Json = dict[str, Any]

PATIENCE, PATIENCE_OF_ACTION = 5.0, 30.0
"""Seconds for one answer of a cluster; some answer an action only when it has an effect."""
WAIT, LOOK = 30.0, 0.3
"""Seconds for an action to show its result, and between two looks."""
BUSY = 409
"""The status while a cluster moves its connectors."""
MOST_CONNECTORS = 1000
LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
"""User and password of a URL."""

PART = {"state": NAME, "worker_id": NAME, "trace": text(TRACE)}
STATUS = record(
    {
        "name": NAME,
        "type": NAME,
        "connector": record(PART, "state"),
        "tasks": list_of(record({"id": number, **PART}, "id", "state"), 1000),
    },
    "connector",
)
CONFIG = map_of(text(16 << 10), 2000)
INFO = record({"type": NAME, "config": CONFIG})
EXPANDED = map_of(record({"status": STATUS, "info": INFO, "error": text(500)}, "status"), MOST_CONNECTORS)
NAMES = list_of(NAME, MOST_CONNECTORS)

ACTIONS: Mapping[str, tuple[str, str, str | None]] = {
    "pause": ("PUT", "pause", "PAUSED"),
    "resume": ("PUT", "resume", "RUNNING"),
    "stop": ("PUT", "stop", "STOPPED"),
    "restart": ("POST", "restart?includeTasks=true&onlyFailed=false", None),
}
"""The request of each action, and the state that shows that it is done."""


RESTING = ("PAUSED", "STOPPED")
SETTLED = 1.0
"""Seconds for which a started connector must be looked at: its task may fail at once, as before."""


class ConnectRefused(PenstockError):
    """The cluster refused the request; `status` is its HTTP status."""

    def __init__(self, status: int, what: str, where: str) -> None:
        super().__init__(what, where=where, next="see what Kafka Connect says")
        self.status = status


class ConnectClusters:
    """The clusters by their number in the list of addresses."""

    def __init__(self, addresses: Callable[[], Sequence[Address]], mask: Mask) -> None:
        self._addresses, self._mask = addresses, mask

    async def listed(self) -> list[Json]:
        """The connectors of all clusters; a cluster that does not answer is one entry with its `error`."""
        each = await asyncio.gather(*(self._of(number, address) for number, address in enumerate(self._addresses())))
        return [connector for some in each for connector in some]

    async def connector(self, cluster: int, name: str) -> Json:
        """A connector with its configuration and its offsets, which clusters before Kafka 3.5 do not tell."""
        address, path = self._address(cluster), _path(name)
        status, config, offsets = await asyncio.gather(
            _asked(address, f"{path}/status"), _config(address, f"{path}/config"), _offsets(address, f"{path}/offsets")
        )
        connector = _connector(cluster, address, name, STATUS(status.parsed(address.url)))
        if isinstance(config, TooLargeAnswer):
            return connector | {
                "config": {},
                "offsets": offsets,
                "problem": f"its configuration is not shown: {config.what}",
            }
        return connector | {"config": self._shown(CONFIG(config.parsed(address.url)) or {}), "offsets": offsets}

    async def act(self, cluster: int, name: str, action: str) -> Json:
        """Pause, resume, stop or restart a connector, and wait for the result: `done`, and what it is then."""
        address = self._address(cluster)
        method, path, wanted = ACTIONS[action]
        own = _path(name)
        begun = time.monotonic()
        await _while_busy(address, f"{own}/{path}", method, begun + WAIT)
        while True:
            # A cluster may answer for a moment with the state before the action.
            await asyncio.sleep(LOOK)
            status = STATUS((await _asked(address, f"{own}/status")).parsed(address.url))
            connector = _connector(cluster, address, name, status)
            waited = time.monotonic() - begun
            done = _is_done(connector, wanted) and (wanted in RESTING or waited > SETTLED)
            if done or waited > WAIT:
                return {"action": action, "done": done, "waited_seconds": round(waited, 1), "connector": connector}

    def _address(self, cluster: int) -> Address:
        addresses = self._addresses()
        if not 0 <= cluster < len(addresses):
            raise ConnectRefused(404, f"there is no Connect cluster {cluster}", "--connect")
        return addresses[cluster]

    async def _of(self, cluster: int, address: Address) -> list[Json]:
        try:
            connectors = await _found(address)
        except PenstockError as error:
            return [{"cluster": cluster, "url": address.url, "name": None, "error": error.what, "tasks": []}]
        return [
            _connector(cluster, address, name, expanded.get("status"))
            | {"letters": _letters(expanded)}
            | ({"problem": expanded["error"]} if "error" in expanded else {})
            for name, expanded in sorted(connectors.items())
        ]

    def _shown(self, config: Mapping[str, str]) -> dict[str, str]:
        return {name: self._value(name, value) for name, value in sorted(config.items())}

    def _value(self, name: str, value: str) -> str:
        if has_secret_name(name):
            return HIDDEN
        # A user of a URL is hidden, too: this page may have more readers than the cluster.
        return self._mask.text(LOGIN.sub(f"{HIDDEN}@", without_logins(value)), "text")


def _path(name: str) -> str:
    if name in (".", ".."):
        # A proxy before the cluster would take it for a path to another page.
        raise ConnectRefused(404, f"{name!r} is not a name of a connector", "/api/connectors")
    return f"/connectors/{quote(name, safe='')}"


async def _found(address: Address) -> dict[str, Json]:
    """The connectors of a cluster by name, with as much of each as it can tell in one answer that is not too large."""
    whole, states, names = "/connectors?expand=status&expand=info", "/connectors?expand=status", "/connectors"
    try:
        return EXPANDED((await _asked(address, whole)).parsed(address.url)) or {}
    except TooLargeAnswer as error:
        lacks = f"its configuration is not listed: with those of all connectors {error.what}"
    try:
        connectors = EXPANDED((await _asked(address, states)).parsed(address.url)) or {}
        return {name: expanded | {"error": lacks} for name, expanded in connectors.items()}
    except TooLargeAnswer as error:
        lacks = f"its state is not listed: with those of all connectors {error.what}"
    listed = NAMES((await _asked(address, names)).parsed(address.url)) or []
    return {name: {"error": lacks} for name in listed}


async def _config(address: Address, path: str) -> HttpAnswer | TooLargeAnswer:
    try:
        return await _asked(address, path)
    except TooLargeAnswer as error:
        return error


def _letters(expanded: Json) -> str | None:
    """The topic of the connector's dead letters."""
    topic: str | None = expanded.get("info", {}).get("config", {}).get("errors.deadletterqueue.topic.name")
    return topic or None


def _connector(cluster: int, address: Address, name: str, status: Json | None) -> Json:
    part = (status or {}).get("connector", {"state": "UNKNOWN"})
    tasks = [
        {"id": task["id"], "state": task["state"], "worker": task.get("worker_id", ""), "trace": task.get("trace", "")}
        for task in (status or {}).get("tasks", [])
    ]
    return {
        "cluster": cluster,
        "url": address.url,
        "name": name,
        "type": (status or {}).get("type", "unknown"),
        "state": part["state"],
        "worker": part.get("worker_id", ""),
        "trace": part.get("trace", ""),
        "tasks": tasks,
    }


def _is_done(connector: Json, wanted: str | None) -> bool:
    """Whether connector and tasks are in the wanted state, or after a restart in any that lasts."""
    states = {connector["state"], *(task["state"] for task in connector["tasks"])}
    if wanted == "RUNNING":
        # A task that fails again does not run, and that is the result.
        return states <= {"RUNNING", "FAILED"}
    if wanted is not None:
        return states <= {wanted}
    return not states & {"RESTARTING", "UNASSIGNED"}


async def _while_busy(address: Address, path: str, method: str, until: float) -> HttpAnswer:
    """Ask, and ask again while the cluster moves its connectors."""
    while True:
        try:
            return await _asked(address, path, method, PATIENCE_OF_ACTION)
        except ConnectRefused as error:
            if error.status != BUSY or time.monotonic() > until:
                raise
        await asyncio.sleep(LOOK)


async def _offsets(address: Address, path: str) -> Any:
    try:
        answer = (await _asked(address, path)).parsed(address.url)
    except ConnectRefused:
        return None
    return answer.get("offsets") if isinstance(answer, dict) else None


async def _asked(address: Address, path: str, method: str = "GET", patience: float = PATIENCE) -> HttpAnswer:
    answer = await fetch(address, path, method=method, patience=patience)
    if answer.status >= 400:
        raise ConnectRefused(answer.status, _said(answer), f"{method} {address.url}{path}")
    return answer


def _said(answer: HttpAnswer) -> str:
    """The message of an error answer."""
    try:
        body = record({"message": text(2000)})(answer.parsed(""))
    except PenstockError:
        body = None
    message = (body or {}).get("message", "no message")
    return f"Kafka Connect refuses: {message} (HTTP {answer.status})"
