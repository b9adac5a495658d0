"""`penstock new ks.table`: writes a pipeline file for the changes of a table."""

from __future__ import annotations

import keyword
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cdc.cdc_tables import find_table
from penstock.cli import services
from penstock.cli.arguments import servers
from penstock.database.access import Access
from penstock.database.cql_connection import close, connection
from penstock.database.cql_types import LOG_SUFFIX, CqlTable
from penstock.database.retrying import telling
from penstock.database.table_catalog import describe, quoted, table_names
from penstock.errors import PenstockError

OPTIONS = "{'enabled': true, 'preimage': 'full', 'postimage': true}"
FILE = '''"""Each change of {table} becomes an event in the topic {topic}.

    penstock check {file}:{name}
    penstock run {file}:{name}
    penstock topics tail {topic}
"""

import os

import penstock as ps
from penstock import cdc, kafka

CQL = os.environ.get("CQL", {cql!r})
KAFKA = os.environ.get("KAFKA", {kafka!r})


@ps.pipeline(every="1 second")
def {name}(spark):
    # {columns}
    changes = cdc.read(spark, {table!r}, hosts=CQL, name={name!r}{more})
    return ps.write(changes, kafka.sink(prefix={prefix!r}, servers=KAFKA))
'''


def add(parser: ArgumentParser) -> None:
    parser.add_argument("table", metavar="KEYSPACE.TABLE", help="a table of the database")
    parser.add_argument("--file", type=Path, metavar="FILE.py", help="the file to write (default: TABLE.py)")
    parser.add_argument("--prefix", metavar="NAME", help="start of the topic's name (default: the keyspace)")
    parser.add_argument("--alter", action="store_true", help="enable the table's change log, without asking")
    parser.add_argument("--servers", type=servers, metavar="HOST:PORT,...", help="Kafka; replaces the Kafka of --root")
    services.add_database(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    access = services.access(args, "penstock new")
    kafka = args.servers or services.kafka(args.root)
    with telling(where=access.hosts, next="check the address and the user"):
        table = _logged(connection(access).rows, args)
    close(access)
    new_file = Made(table, access, kafka, args)
    _write(new_file.file, new_file.text())
    print(f"wrote {new_file.file}: the changes of {table.full_name} become events in the topic {new_file.topic}")
    print(f"next: penstock check {new_file.file}:{new_file.name}, then penstock run {new_file.file}:{new_file.name}")
    return 0


def _logged(session: Any, args: Namespace) -> CqlTable:
    """The table with its options of change logging, which is enabled first if the user wants that."""
    table = describe(session, args.table)
    if table.name + LOG_SUFFIX not in table_names(session, table.keyspace):
        statement = f"ALTER TABLE {quoted(table.keyspace)}.{quoted(table.name)} WITH cdc = {OPTIONS}"
        if not (args.alter or _wanted(table, statement)):
            raise PenstockError(
                f"table {table.full_name} has no change log",
                next=f"add --alter, or run: penstock cql {_shell_quoted(statement)}",
            )
        session.execute(statement)
        print(f"enabled the change log of {table.full_name}")
    return find_table(session, args.table)


def _wanted(table: CqlTable, statement: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"{table.full_name} has no change log. This statement enables it for all changes from now on:\n  {statement}")
    return input("Run it? Type yes: ").strip().lower() == "yes"


def _shell_quoted(statement: str) -> str:
    escaped = statement.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class Made:
    """A pipeline file for a table."""

    table: CqlTable
    access: Access
    kafka: str
    args: Namespace

    @property
    def name(self) -> str:
        """The table's name as a name of Python."""
        name = re.sub(r"\W", "_", self.table.name, flags=re.ASCII).lower()
        # Names that begin with an underscore or a digit cannot be names of pipelines.
        name = name if re.match(r"[a-z]", name) else f"table_{name.lstrip('_')}"
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def file(self) -> Path:
        return Path(self.args.file or f"{self.name}.py")

    @property
    def prefix(self) -> str:
        return str(self.args.prefix or re.sub(r"[^\w.-]", "_", self.table.keyspace, flags=re.ASCII))

    @property
    def topic(self) -> str:
        return f"{self.prefix}.{self.table.full_name}"

    def text(self) -> str:
        return FILE.format(
            table=self.args.table,
            topic=self.topic,
            file=self.file,
            name=self.name,
            cql=self.access.hosts,
            kafka=self.kafka,
            columns=self._columns(),
            prefix=self.prefix,
            more="".join(f", {argument}" for argument in self._more()),
        )

    def _columns(self) -> str:
        kinds = {column.name: f"{column.name} {column.type}" for column in self.table.columns}
        key = [kinds.pop(column.name) for column in (*self.table.partition_key, *self.table.clustering_key)]
        shown = f"Key: {', '.join(key)}" + (f"; columns: {', '.join(kinds.values())}" if kinds else "")
        return re.sub(r"[\r\n]", " ", shown)

    def _more(self) -> list[str]:
        """Arguments that this table or this database needs."""
        lines = []
        before, after = ("full" if self.table.has_image(option) else "none" for option in ("preimage", "postimage"))
        if (before, after) != ("none", "none"):
            lines.append(f'images="{before}"' if before == after else f'images=("{before}", "{after}")')
        if self.access.user:
            lines += [f"user={self.access.user!r}", 'password=os.environ["CQL_PASSWORD"]']
        if self.access.ca or self.access.tls:
            lines.append(f"ca={self.access.ca!r}" if self.access.ca else "tls=True")
        return lines


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as opened:
            opened.write(text)
    except FileExistsError:
        raise PenstockError(
            f"there is a file {file}", where=str(file.resolve()), next="give another name: --file FILE.py"
        ) from None
    except OSError as error:
        raise PenstockError(
            f"the file cannot be written: {error}", next="give another place: --file FILE.py"
        ) from error
