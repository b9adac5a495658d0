"""The connector's acceptance cases as data: which are in scope, what they write, and what they expect.

The cases are a file of vectors (its `legend` explains them), so this module has general rules only: nothing here may
depend on a single case.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.cdc.cdc_options import Image
from penstock.connect.transforms import chain

Json = Any

FILE = "connector_events.json"
BEFORE, AFTER = "cdc.include.before", "cdc.include.after"
PLACEMENT, KEY_NAME = "cdc.include.primary-key.placement", "cdc.include.primary-key.payload-key-name"
FORMAT, PREIMAGES = "cdc.output.format", "experimental.preimages.enabled"
KNOWN = {FORMAT, PREIMAGES, BEFORE, AFTER, PLACEMENT, KEY_NAME, "tombstones.on.delete"}
CHAINS = ("transforms", "predicates")
VERBS = ("INSERT ", "UPDATE ", "DELETE ", "BEGIN ", "ALTER ", "TRUNCATE ")
# Values that change from run to run; `key` is compared where the placement puts it.
VARYING = ("source", "ts_ms", "ts_us", "ts_ns", "transaction")


@dataclass(frozen=True)
class Case:
    """One case: tables, the changes to them (statements, or rows of the log), and the expected records."""

    id: str
    kind: str
    config: dict[str, str]
    ddl: tuple[str, ...]
    statements: tuple[str, ...]
    expect: Json
    log: Json
    headers: Json

    @property
    def tables(self) -> list[str]:
        return re.findall(r"CREATE TABLE ks\.(\w+)", "\n".join(self.ddl))

    @property
    def legacy(self) -> bool:
        """Whether the case uses the legacy format, which is the connector's default."""
        return self.config.get(FORMAT) != "advanced"

    @property
    def images(self) -> tuple[Image, Image]:
        """The images that `cdc.read` must read."""
        if self.legacy:
            return "full" if self.config.get(PREIMAGES) == "true" else "none", "none"
        before, after = (self.config.get(side, "none") for side in (BEFORE, AFTER))
        return "none" if before == "none" else "full", "none" if after == "none" else "full"

    @property
    def out_of_scope(self) -> str | None:
        """Why this case does not apply to the events of one pipeline; None if it applies."""
        if not self.config:
            return "no event configuration: it validates options"
        if unknown := sorted(set(self.config) - KNOWN - set(self._chain)):
            return f"about the connector's own settings: {', '.join(unknown)}"
        if not isinstance(self.expect, list):
            return f"expectation in prose: {self.expect}"
        if self.log is None and not all(map(_is_cql, self.statements)):
            return f"statements in prose: {'; '.join(self.statements)}"
        return None

    @property
    def _chain(self) -> dict[str, str]:
        """The properties of transforms and predicates."""
        return {name: value for name, value in self.config.items() if name.partition(".")[0] in CHAINS}

    def options(self) -> dict[str, Any]:
        """The arguments of `cdc.events` for the case's configuration."""
        options: dict[str, Any] = {"tombstones": self.config.get("tombstones.on.delete", "true") == "true"}
        if self.legacy:
            options["format"] = "legacy"
        else:
            options["images"] = tuple(self.config.get(side, "none") for side in (BEFORE, AFTER))
        if PLACEMENT in self.config:
            options["placement"] = self.config[PLACEMENT].split(",")
        if self._chain:
            options["transforms"] = chain(self._chain)
        if KEY_NAME in self.config:
            options["payload_key_name"] = self.config[KEY_NAME]
        return options


def _is_cql(statement: str) -> bool:
    return statement.upper().startswith(VERBS) and not re.search(r"<\w+[+-]", statement)


def load() -> list[Case]:
    """The cases of $PENSTOCK_VECTORS if set, else the cases of this repository."""
    folder = Path(os.environ.get("PENSTOCK_VECTORS") or Path(__file__).parents[2] / "vectors")
    found = json.loads((folder / FILE).read_text())["cases"]
    return [
        Case(
            case["id"],
            case["kind"],
            case["config"] or {},
            tuple(case["ddl"]),
            tuple(case["statements"]),
            case["expect"],
            case.get("log"),
            case.get("headers"),
        )
        for case in found
    ]


def log_row(columns: dict[str, Json], operation: int, extra: dict[str, Json], lists: frozenset[str]) -> dict[str, Json]:
    """A row of the log for CQL's `INSERT ... JSON`; in the log a list is a map by element id."""
    row = {name: _elements(value) if name in lists else value for name, value in columns.items()}
    row |= {f"cdc$deleted_{name}": True for name in extra.get("deleted", ())}
    row |= {f"cdc$deleted_elements_{name}": keys for name, keys in extra.get("deleted_elements", {}).items()}
    return {**row, "cdc$operation": operation}


def _elements(value: Json) -> Json:
    if not isinstance(value, list):
        return value
    # Element ids in the order of the list: version 1 uuids of ascending time.
    return {f"{i:08x}-0000-1000-8000-000000000000": element for i, element in enumerate(value, 1)}


def quoted(row: dict[str, Json]) -> str:
    """The JSON of a row with its column names quoted inside, so that CQL keeps their case."""
    return json.dumps({f'"{name}"': value for name, value in row.items()})


def comparable(value: Json) -> Json:
    """An event without the members that vary."""
    if value is None:
        return None
    return {name: member for name, member in cast(dict[str, Json], value).items() if name not in VARYING}
