"""Rows of states, read from checkpoints without Spark; what only Spark can read is left to `penstock state serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.console.reading.masking import Mask
from penstock.errors import PenstockError
from penstock.state.direct import Direct
from penstock.state.stores import LIMIT, NoSuchState, States


class NeedsSpark(PenstockError):
    """Only Spark can read this state."""


def _no_spark() -> States:
    raise NeedsSpark(
        "the console cannot read this state, because it has no Spark",
        next="start `penstock state serve --checkpoints DIR`, and the console with --state URL",
    )


def _states(folder: str) -> Direct:
    return Direct(Path(folder), _no_spark)


async def listed(folders: list[str]) -> list[dict[str, Any]]:
    """The names of all states below folders of checkpoints, and how fresh they are."""
    return await asyncio.to_thread(_listed, folders)


def _listed(folders: Iterable[str]) -> list[dict[str, Any]]:
    return [{"folder": folder, **state} for folder in folders for state in _states(folder).overview()]


async def rows(folders: list[str], name: str, key: str | None, limit: int, mask: list[str]) -> dict[str, Any]:
    """The rows of a state, all or those of a key; raises NoSuchState if no folder has the state."""
    return await asyncio.to_thread(_rows, folders, name, key, limit, Mask(mask))


def _rows(folders: Iterable[str], name: str, key: str | None, limit: int, mask: Mask) -> dict[str, Any]:
    missing: NoSuchState | None = None
    for folder in folders:
        states = _states(folder)
        try:
            answer = states.scan(name, None, min(limit, LIMIT)) if key is None else states.get(name, key, limit)
            return {**answer.to_json(), "rows": mask.value(answer.rows)}
        except NoSuchState as error:
            missing = error
    raise missing or NoSuchState(f"there is no state {name}", next="give --checkpoints DIR or --state URL")
