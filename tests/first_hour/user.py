"""A new user: `python tests/first_hour/user.py` runs the documents' first commands in a terminal, and times them.

It builds the wheel, makes an environment with it, starts servers on free ports, and works in a temporary folder. The
environment uses the packages of this one, unless `--full` installs all of them. Then it makes the usual mistakes;
`--report FILE` writes what their messages say as a table, `--json FILE` everything. `--compiled` compiles first, as
`make setup` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from new_user import (  # noqa: E402
    INSERT,
    KEYSPACE,
    MISTAKES,
    ORDERS,
    Mistake,
    Told,
    User,
    borrowing,
    closed_port,
    full_disk,
    installing,
    make,
    prepare,
)
from terminal import INTERRUPT, Terminal  # noqa: E402
from wheels import UV, run  # noqa: E402

from penstock.local import ports  # noqa: E402

EXTRAS = "connect,cql,segments,state"
RUN = "run orders.py:orders"
READS = "reads .*; writes to "
FIRST_ROWS = "first .* rows after"


class Step(NamedTuple):
    """A command, the seconds until its first line and its end, its exit code and its last line."""

    command: str
    first: float
    seconds: float
    code: int
    last: str


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-user-") as name:
        folder = Path(name)
        programs, lacking = _environments(folder, args.full)
        cql = ports.free(set())
        kafka = ports.free({cql})
        places = {"cql": f"127.0.0.1:{cql}", "kafka": f"127.0.0.1:{kafka}", "taken": str(kafka), "shop": "shop"}
        places |= {"cql_port": str(cql), "kafka_port": str(kafka), "topic": "shop.shop.orders"}
        places |= {"kept": str(folder / "work/.penstock/checkpoints")}
        user = User(programs, folder / "work", places)
        user.folder.mkdir()
        if args.compiled:
            print("compiling ...", flush=True)
            user.runs("compile")
        with full_disk(folder / "full") as full, closed_port() as closed:
            user = User(programs, user.folder, places | {"full": str(full), "closed": str(closed)})
            try:
                steps = [_shown(step) for step in _begun(walk(user))]
                told = [] if args.no_mistakes else list(_mistakes(user, User(lacking, user.folder, user.places)))
            finally:
                down = [_shown(_ended(user, "down"))]
    if args.report:
        args.report.write_text(report(told))
    if args.json:
        shown = {"steps": [one._asdict() for one in steps + down]}
        shown["mistakes"] = [{"mistake": mistake.name} | one._asdict() for mistake, one in told]
        args.json.write_text(json.dumps(shown, indent=1))
    wrong = [f"{one.command}: exit code {one.code}" for one in steps + down if one.code]
    wrong += [f"{mistake.name}: lacks {', '.join(one.lacks)}: {one.message}" for mistake, one in told if one.lacks]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="install all packages instead of using those that are here")
    parser.add_argument("--compiled", action="store_true", help="compile all loops and Spark's classes first")
    parser.add_argument("--no-mistakes", action="store_true", help="only the commands of the documents")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the mistakes' messages as a table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    return parser.parse_args()


def _environments(folder: Path, full: bool) -> tuple[Path, Path]:
    """The programs of an environment with the wheel, and of one without the database's driver."""
    began = time.monotonic()
    run(*UV, "build", "--wheel", "--no-build-isolation", "--out-dir", folder / "wheel", ROOT)
    (wheel,) = (folder / "wheel").glob("*.whl")
    programs = installing(folder / "user", wheel, EXTRAS) if full else borrowing(folder / "user", wheel)
    how = "all packages installed" if full else "with the packages of this environment"
    print(f"an environment with the wheel, {how}: {time.monotonic() - began:.1f} s", flush=True)
    return programs, borrowing(folder / "base", wheel, ("cassandra",))


def walk(user: User) -> Iterator[Step]:
    """The commands of README.md, docs/local.md, docs/commands.md, docs/run.md and docs/topics.md."""
    yield _ended(user, "")
    yield _ended(user, "up --kafka-port {kafka_port} --cql-port {cql_port}")
    yield _ended(user, "status")
    yield _ended(user, f'cql "{KEYSPACE}; {ORDERS}"')
    yield _ended(user, "new shop.orders")
    yield _ended(user, "check orders.py:orders")
    with user.begins(RUN) as pipeline:
        pipeline.until("starting Spark")
        pipeline.until(READS)
        reads = time.monotonic() - pipeline.began
        yield _ended(user, f'cql "{INSERT}"')
        pipeline.until(FIRST_ROWS)
        rows = time.monotonic() - pipeline.began
        yield _ended(user, "topics list")
        yield _ended(user, "topics count shop.shop.orders")
        yield _ended(user, "topics tail shop.shop.orders --from earliest --limit 1")
        yield _ended(user, "ps")
        yield _ended(user, "checkpoints list")
        pipeline.type(INTERRUPT)
        yield _step(RUN, pipeline)
    for words in (f"{RUN}: until it reads", reads), (f"{RUN}: until the first rows", rows):
        yield Step(words[0], pipeline.first, words[1], 0, "")
    with user.begins(RUN) as pipeline:
        pipeline.until(READS)
        again = time.monotonic() - pipeline.began
        pipeline.type(INTERRUPT)
        yield _step(f"{RUN} again, interrupted at once", pipeline)
    yield Step(f"{RUN} again: until it reads", pipeline.first, again, 0, "")
    yield _ended(user, "checkpoints show orders")
    yield _ended(user, "state list")
    yield _ended(user, 'cql --json "SELECT * FROM shop.orders"')
    with user.begins("topics tail shop.shop.orders") as tail:
        tail.until("ann")
        tail.type(INTERRUPT)
        step = _step("topics tail shop.shop.orders, then Ctrl-C", tail)
        yield step._replace(code=0 if step.code == 130 else 1)


def _ended(user: User, words: str) -> Step:
    with user.begins(words) as terminal:
        return _step(words.format(**user.places), terminal)


def _step(command: str, terminal: Terminal) -> Step:
    code = terminal.end()
    return Step(f"penstock {command}".strip(), terminal.first, terminal.seconds, code, (terminal.lines or [""])[-1])


def _mistakes(user: User, lacking: User) -> Iterator[tuple[Mistake, Told]]:
    prepare(user)
    for mistake in MISTAKES:
        if "{full}" in mistake.words and user.places["full"] == "None":
            print(f"no full disk can be mounted here: {mistake.name} is left out")
            continue
        told = make(mistake, lacking if mistake.lacks else user)
        print(f"{mistake.name}: {told.message}", flush=True)
        yield mistake, told


def _begun(steps: Iterator[Step]) -> Iterator[Step]:
    print(f"{'command':<60} {'first line':>10} {'end':>9} {'code':>4}  last line")
    return steps


def _shown(one: Step) -> Step:
    command, last = _cut(one.command, 60), _cut(one.last, 70)
    print(f"{command:<60} {one.first:>8.2f} s {one.seconds:>7.2f} s {one.code:>4}  {last}", flush=True)
    return one


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def report(told: list[tuple[Mistake, Told]]) -> str:
    """A Markdown table of mistakes and messages."""
    lines = [
        "| mistake | command | first line | code | message | what | where | next |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for mistake, one in told:
        has = ["no" if part in one.lacks else "yes" for part in ("what", "where", "next")]
        command = f"`penstock {mistake.words}`"
        cells = (mistake.name, command, f"{one.first:.1f} s", str(one.code), one.message, *has)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
