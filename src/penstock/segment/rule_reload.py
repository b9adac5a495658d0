"""Rules that change while a stream runs: a batch that meets a changed file ends the query, to start with the new.

`penstock run` starts a query that ended so at once, from its checkpoint: the batch is repeated under the new rules and
no event is lost. A file that cannot be read or has an error changes nothing, until it is right again.
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
    """The file of a stream's rules has others than it had when the stream was built."""


def watching(rules: Sequence[Rule] | RuleFile, stage: Stage) -> Stage:
    """The stage, which looks at the rules' file, if they have one, before it begins."""
    if not isinstance(rules, RuleFile):
        return stage
    file, known = rules, rules.text

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        require_same(file, known)
        yield from stage(batches)

    return watched


def stay(error: Exception) -> None:
    """Tell that the rules that are there are used on."""
    print(f"the rules stay as they are: {error}", file=sys.stderr, flush=True)


def require_same(file: RuleFile, known: str) -> None:
    """Raise if the file has other rules now, all of them right."""
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
        raise RulesChanged(f"the rules in {file.path} changed", where=str(file.path), next="start the query again")
