"""`penstock erase`: deletes a person from the tables of matching and of segments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from penstock.cli.arguments import servers
from penstock.cql.matching.id_erase import erase
from penstock.cql.matching.id_store import ids
from penstock.segment.member_tables import member_erase as segments


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", help="kind of one of the person's identities, for example email_hash")
    parser.add_argument("value", help="value of this identity")
    parser.add_argument("--keyspace", required=True, help="keyspace of the tables of matching")
    parser.add_argument("--hosts", required=True, help="host:port of the database's nodes, separated by commas")
    parser.add_argument("--user", default="", help="the database's user; the password is read from CQL_PASSWORD")
    parser.add_argument(
        "--segments", metavar="KEYSPACE", help="keyspace of the tables of segments, to delete the person there too"
    )
    parser.add_argument(
        "--servers", type=servers, metavar="HOST:PORT,...", help="Kafka, to notify destinations that got the person"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    reach = {"hosts": args.hosts, "user": args.user, "password": os.environ.get("CQL_PASSWORD", "")}

    def members(persons: Sequence[str]) -> None:
        erased_members = segments.erase(persons, keyspace=args.segments, servers=args.servers or "", **reach)
        print(*erased_members.lines(), sep="\n")

    store = ids(args.keyspace, **reach)
    erased = erase(store, args.kind, args.value, before=members if args.segments else None)
    if not erased.persons:
        print(f"no person has {args.kind} {args.value}; nothing is stored")
    for person in erased.persons:
        print(f"erased person {person}")
    for kind, value in erased.identities:
        print(f"erased {kind} {value}")
    return 0
