"""Rules that change while a stream runs: a batch that finds a changed file ends the query, which restarts with it.

`penstock run` restarts such a query at once from its checkpoint: the batch is repeated under the new rules and no event
is lost. A file that cannot be read or has an error is ignored until it is valid again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from penstock.errors import PenstockError, SchemaChanged
from penstock.segment.rule_definitions import Rule, spec
from penstock.segment.rule_files import RuleFile, parse
from penstock.segment.rule_plan import plan

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class RulesChanged(SchemaChanged):
    """The rules in a stream's file differ from those it was built with."""


def watching(rules: Sequence[Rule] | RuleFile, stage: Stage) -> Stage:
    """The stage; if the rules come from a file, it checks the file for changes before each run."""
    if not isinstance(rules, RuleFile):
        return stage
    file, known = rules, rules.text

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        require_same(file, known)
        yield from stage(batches)

    return watched


def stay(error: Exception) -> None:
    """Report that the current rules stay in use."""
    print(f"the rules stay as they are: {error}", file=sys.stderr, flush=True)


def require_same(file: RuleFile, known: str) -> None:
    """Raise RulesChanged if the file now has other rules and all of them are valid."""
    try:
        text = file.path.read_text()
        if text == known:
            return
        found = parse(text, str(file.path))
        plan(found)
    except OSError:
        return
    except (PenstockError, UnicodeDecodeError) as error:
        stay(error)
        return
    if [spec(rule) for rule in found] != [spec(rule) for rule in file.rules]:
        raise RulesChanged(f"the rules in {file.path} changed", where=str(file.path), next="restart the query")
