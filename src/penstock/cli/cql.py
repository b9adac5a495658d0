"""`penstock cql`: runs CQL statements, given as arguments, in a file, on standard input, or typed one by one."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.cli import services
from penstock.cli.cql_statements import last, split
from penstock.cli.output import aligned, printable, to_pipe
from penstock.database.cql_connection import close, connection
from penstock.database.retrying import telling
from penstock.database.table_catalog import did_you_mean, table_names
from penstock.errors import PenstockError

ROWS = 1000
"""Rows that are aligned together, and fetched at once."""
NO_TABLE = re.compile(r"(?:table (?=\w+ does not exist)|unconfigured table )(\w+)")
"""How Cassandra and ScyllaDB say that a table is not there."""
PROMPT, MORE = "cql> ", "...> "
ENDS = ("exit", "quit")
HELP = (
    "Statements end with a semicolon, for example:\n"
    "  DESCRIBE KEYSPACES;   DESCRIBE TABLE shop.orders;   SELECT * FROM shop.orders LIMIT 10;\n"
    "exit, quit or Ctrl-D ends."
)


def add(parser: ArgumentParser) -> None:
    parser.add_argument("statements", nargs="*", metavar="STATEMENT", help="without one: standard input, or a prompt")
    parser.add_argument("--file", type=Path, metavar="FILE.cql", help="run the statements of a file")
    parser.add_argument("--keyspace", metavar="NAME", help="keyspace of tables that are named without one")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    services.add_database(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    access = services.access(args, "penstock cql")
    with telling(where=access.hosts, next="check the address and the user"):
        session = connection(access).rows
    session.default_fetch_size = ROWS
    shell = Shell(session, access.hosts, args.json)
    try:
        if args.keyspace:
            shell.execute(f"USE {args.keyspace}")
        if args.statements or args.file or not sys.stdin.isatty():
            with to_pipe():
                for statement in _statements(args):
                    shell.execute(statement)
        else:
            _ask(shell)
    finally:
        close(access)
    return 0


class Shell:
    """Executes statements of a session, and prints their rows."""

    def __init__(self, session: Any, hosts: str, as_json: bool) -> None:
        self._session, self._hosts, self._as_json = session, hosts, as_json

    def execute(self, statement: str) -> None:
        """Raises PenstockError if the database refuses the statement or does not answer."""
        shown = statement if len(statement) <= 100 else f"{statement[:97]}..."
        try:
            self._execute(statement, shown)
        except PenstockError as error:
            error.next = self._near(statement, error.what) or error.next
            raise

    def _near(self, statement: str, refusal: str) -> str:
        """A question with the table that is near to one that the statement names and that is not there."""
        wrong = NO_TABLE.search(refusal)
        named = wrong and re.search(rf"(\w+)\.{re.escape(wrong[1])}\b", statement)
        if not named:
            return ""
        return did_you_mean(named[1], named[0].partition(".")[2], table_names(self._session, named[1])).strip()

    def _execute(self, statement: str, shown: str) -> None:
        with telling(where=f"{self._hosts}: {printable(shown)}", next="see DESCRIBE KEYSPACES; and the CQL reference"):
            result_set = self._session.execute(statement)
            for warning in result_set.response_future.warnings or ():
                print(f"warning: {printable(warning)}", file=sys.stderr)
            names = list(result_set.column_names or ())
            if "create_statement" in names:
                _print_described(result_set, names)
            elif names:
                self._print(names, iter(result_set))

    def _print(self, names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
        if self._as_json:
            for row in rows:
                print(json.dumps(dict(zip(names, map(_plain, row), strict=True))))
            return
        count = 0
        while (some := list(islice(rows, ROWS))) or not count:
            cells = [[printable(_text(value)) for value in row] for row in some]
            for line in aligned([names, *cells]):
                print(line)
            count += len(some)
            if len(some) < ROWS:
                break
        print(f"({count} row{'' if count == 1 else 's'})")


def _print_described(rows: Iterable[tuple[Any, ...]], names: list[str]) -> None:
    place = names.index("create_statement")
    print("\n\n".join(str(row[place]) for row in rows))


def _statements(args: Namespace) -> Iterator[str]:
    """The statements of the arguments, the file or standard input; the last one needs no semicolon."""
    texts = args.statements or [_text_of(args.file) if args.file else sys.stdin.read()]
    for text in texts:
        statements, rest = split(text)
        yield from statements
        if remaining := last(rest):
            yield remaining


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PenstockError(f"the file cannot be read: {error}", where=str(file), next="give a text file") from error


def _ask(shell: Shell) -> None:
    """Execute what is typed, until the end; an error is shown, and the next statement can be typed."""
    if find_spec("readline"):
        import readline  # noqa: F401 - editing and history of the prompt
    print("CQL; statements end with a semicolon. help; exit")
    text = ""
    while True:
        try:
            line = input(MORE if text.strip() else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            text = ""
            continue
        word = line.strip().rstrip(";").lower()
        if not text.strip() and word in (*ENDS, "help"):
            if word in ENDS:
                return
            print(HELP)
            continue
        statements, text = split(f"{text}{line}\n")
        _execute(shell, statements)


def _execute(shell: Shell, statements: list[str]) -> None:
    for statement in statements:
        try:
            shell.execute(statement)
        except PenstockError as error:
            print(error, file=sys.stderr)
            return
        except KeyboardInterrupt:
            print()
            return


def _text(value: Any) -> str:
    """A value about as CQL writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(_plain(value))


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if hasattr(value, "items"):
        return {str(_plain(name)): _plain(member) for name, member in value.items()}
    return [_plain(element) for element in value] if isinstance(value, Iterable) else str(value)
