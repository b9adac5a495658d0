"""The state stores below a folder of checkpoints, by name: `<pipeline>[/<query>]/<operator or variable>`.

Also the answers to questions about state, wherever it is kept.

Stores are found without Spark, in the files that it keeps beside the state. If a query has an operator twice, the
operator's number follows its name. A join has a store for each side, an operator with variables has one for each
variable. Penstock's windows, tables, joins and segments have theirs under their `name=`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.log import CheckpointLog
from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.keyed_state.description import HEAD, SEGMENTS, TABLES

JOIN = "symmetricHashJoin"
SIDES = ("left", "right")
LIMIT = 1000
MOST = (1 << 31) - 2
"""The largest limit; Spark counts rows in 32 bits, and is asked for one more."""


class NoSuchState(PenstockError):
    """The state does not exist, or has nothing under this key."""


@dataclass(frozen=True)
class Freshness:
    """The last batch that a state holds, and when it was committed; both None if no query is known to write it."""

    batch: int | None
    committed: datetime | None

    def to_json(self) -> dict[str, Any]:
        if self.committed is None:
            return {"batch": None, "committed": None, "age_seconds": None}
        age = (datetime.now(UTC) - self.committed).total_seconds()
        return {"batch": self.batch, "committed": self.committed.isoformat(), "age_seconds": round(age, 3)}


@dataclass(frozen=True)
class StateRows:
    """Rows of a state; `more` is true if a limit cut them."""

    name: str
    fresh: Freshness
    rows: list[Any]
    more: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.fresh.to_json(), "rows": self.rows, "more": self.more}


class States(Protocol):
    """Where queries keep state."""

    def overview(self) -> list[dict[str, Any]]:
        """The name of each state, and how fresh it is."""

    def get(self, name: str, key: str, limit: int = LIMIT) -> StateRows:
        """The rows of a key: a string, or a JSON object of several of its columns or fields."""

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> StateRows:
        """Rows in no particular order; `where` is an SQL condition over the columns."""


def cut(name: str, fresh: Freshness, rows: list[Any], limit: int) -> StateRows:
    """The answer from rows that were read with a limit of `limit` + 1."""
    return StateRows(name, fresh, rows[:limit], len(rows) > limit)


def of_columns(key: str) -> dict[str, Any] | None:
    """The columns of a key that is a JSON object; None for another string, which is the value of the only column."""
    try:
        wanted = exact_json.loads(key)
    # A key that is nested deeper than Python follows is not an object of columns either.
    except (ValueError, RecursionError):
        return None
    return wanted if isinstance(wanted, dict) else None


def require_some(answer: StateRows, key: str) -> StateRows:
    if not answer.rows:
        raise NoSuchState(
            f"{answer.name} has nothing under the key {key}",
            where=f"batch {answer.fresh.batch}",
            next=f"list its rows: penstock state scan {answer.name}",
        )
    return answer


@dataclass(frozen=True)
class StateStore:
    """A store; `options` are those of Spark's state reader, `packed` is the kind of a packed state (`unpacking`)."""

    name: str
    operator: str
    checkpoint: Path
    options: Mapping[str, str] = field(default_factory=dict)
    packed: str = ""

    @property
    def committed(self) -> Path | None:
        """Spark's commit file of the last batch; None if there is none."""
        commits = [path for path in (self.checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
        return max(commits, key=_number, default=None)

    @property
    def partitions(self) -> int:
        """The number of partitions that Spark spreads the keys over."""
        return sum(_number(path) >= 0 for path in (self.checkpoint / "state" / self.options["operatorId"]).iterdir())

    def ids(self, batch: int) -> Any:
        """The ids of the versions of a committed batch, by operator; None without checkpoint format 2."""
        return CheckpointLog(Local(self.checkpoint)).commit(batch).get("stateUniqueIds")

    def fresh(self) -> Freshness:
        """Raises PenstockError if no batch is committed."""
        last = self.committed
        if last is None:
            raise PenstockError(
                f"{self.name} holds nothing yet: no batch is committed",
                where=f"checkpoint {self.checkpoint}",
                next="wait for the first batch",
            )
        return Freshness(_number(last), datetime.fromtimestamp(last.stat().st_mtime, UTC))


def stores(folder: Path) -> list[StateStore]:
    """All stores of all queries below this folder."""
    if not folder.is_dir():
        raise PenstockError(
            "there is no folder of checkpoints",
            where=str(folder),
            next="give the folder of `penstock run` in --checkpoints",
        )
    checkpoints = sorted(path.parent for path in folder.glob("**/state") if (path.parent / "offsets").is_dir())
    # Reset checkpoints are in a folder whose name begins with a dot.
    checkpoints = [path for path in checkpoints if not any(part[0] == "." for part in path.relative_to(folder).parts)]
    return [store for checkpoint in checkpoints for store in _of_query(checkpoint, folder)]


def overview(folder: Path) -> list[dict[str, Any]]:
    """The stores that hold something, and how fresh they are."""
    all_stores = stores(folder)
    return [
        {"name": store.name, "operator": store.operator, **store.fresh().to_json()}
        for store in all_stores
        if store.committed
    ]


def find(folder: Path, name: str) -> StateStore:
    """The store of this name, or the only store in this query or pipeline; raises `NoSuchState` otherwise."""
    known = stores(folder)
    matching = [store for store in known if store.name == name]
    matching = matching or [store for store in known if store.name.startswith(f"{name}/")]
    if len(matching) == 1:
        return matching[0]
    raise unknown(name, [store.name for store in matching], [store.name for store in known], f"checkpoints in {folder}")


def unknown(name: str, matching: Sequence[str], known: Sequence[str], where: str) -> NoSuchState:
    """The error for a name that matches no state, or several."""
    what = f"{name} names {len(matching)} states" if matching else f"there is no state {name}"
    listed = ", ".join(matching or known)
    return NoSuchState(
        what, where=where, next=f"choose one of: {listed}" if listed else "wait for the first batch: there is none yet"
    )


def _of_query(checkpoint: Path, folder: Path) -> Iterator[StateStore]:
    operators = [metadata(path) for path in sorted((checkpoint / "state").iterdir(), key=_number) if _number(path) >= 0]
    counts = Counter(str(described["operatorInfo"]["operatorName"]) for described in operators)
    query = checkpoint.relative_to(folder).as_posix()
    for described in operators:
        number, operator = described["operatorInfo"]["operatorId"], str(described["operatorInfo"]["operatorName"])
        name = operator if counts[operator] == 1 else f"{operator}-{number}"
        variables = _variables(described)
        if ours := _packed(variables):
            stage, kind = ours
            options = {"operatorId": str(number), "stateVarName": stage + kind}
            yield StateStore(f"{query}/{stage}", operator, checkpoint, options, kind)
            continue
        for part, options in _parts(operator, variables):
            # The user names variables, so the operator's name is needed only if the query has the operator twice.
            words = [part] if "stateVarName" in options and counts[operator] == 1 else [name, part]
            full = "/".join([query, *filter(None, words)])
            yield StateStore(full, operator, checkpoint, {"operatorId": str(number), **options})


def _parts(operator: str, variables: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    if operator == JOIN:
        for side in SIDES:
            yield side, {"joinSide": side}
        return
    for variable in variables:
        yield variable, {"stateVarName": variable}
    if not variables:
        yield "", {}


def _variables(metadata: Mapping[str, Any]) -> list[str]:
    properties = json.loads(metadata.get("operatorPropertiesJson") or "{}")
    named = (str(variable["stateName"]) for variable in properties.get("stateVariables", []))
    return sorted(name for name in named if not name.startswith("$"))  # timers are Spark's own


def _packed(variables: Sequence[str]) -> tuple[str, str] | None:
    """Name and kind of a packed stage, which has exactly two variables; None for other operators."""
    stages = [name.removesuffix(HEAD) for name in variables if name.endswith(HEAD)]
    kinds = [(stage, kind) for stage in stages for kind in (TABLES, SEGMENTS)]
    return next((pair for pair in kinds if sorted([pair[0] + HEAD, "".join(pair)]) == variables), None)


def metadata(path: Path, batch: int | None = None) -> dict[str, Any]:
    """Spark's description of an operator, the newest or that of a batch: a line for the version, then JSON."""
    folder = path / "_metadata"
    numbered = sorted((folder / "v2").glob("[0-9]*"), key=_number)
    numbered = [
        version_file for version_file in numbered if batch is None or _number(version_file) <= batch
    ] or numbered
    file = numbered[-1] if numbered else folder / "metadata"
    try:
        version, content = file.read_text().split("\n", 1)
        if version not in ("v1", "v2"):
            raise PenstockError(
                f"this checkpoint is of another version of Spark: {version[:20]!r}",
                where=str(file),
                next="read it with the version of penstock that runs the query",
            )
        description: dict[str, Any] = json.loads(content)
    except (OSError, ValueError) as error:
        raise PenstockError(
            f"no description of the state: {error}",
            where=str(file),
            next="wait for the first batch of the query; checkpoints of Spark before 4.0 have none",
        ) from error
    return description


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdigit() else -1
