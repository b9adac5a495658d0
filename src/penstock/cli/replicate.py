"""`penstock replicate`: keeps tables of one cluster equal to tables of another until it is stopped."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import timedelta

from penstock.cli import command_config
from penstock.cli.arguments import add_command_config, servers
from penstock.cli.both_clusters import add_clusters, add_tables, source_access, table_pairs, target_access
from penstock.cli.run import add_running, running, supervise
from penstock.durations import duration
from penstock.errors import PenstockError
from penstock.replicate.change_events import CODECS, EventCodec
from penstock.replicate.replication import Replication, Through
from penstock.run.pipeline import default_target


def add(parser: ArgumentParser) -> None:
    add_tables(parser)
    add_clusters(parser)
    parser.add_argument(
        "--name", required=True, metavar="NAME", help="the replication's name, and that of its checkpoint"
    )
    kafka = parser.add_argument_group("through Kafka", "without it, changes go from table to table")
    kafka.add_argument(
        "--through",
        type=servers,
        dest="servers",
        metavar="HOST:PORT,...",
        help="Kafka's brokers: changes go to topics NAME.<keyspace>.<table>, and from there to the target",
    )
    kafka.add_argument("--registry", metavar="URL", help="a schema registry, for records that are not JSON")
    kafka.add_argument(
        "--format", choices=CODECS, help="of the records (default: avro with a registry, json without one)"
    )
    add_command_config(parser)
    parser.add_argument(
        "--two-ways",
        action="store_true",
        help="apply changes of the target to the source as well; both need a change log",
    )
    parser.add_argument("--create", action="store_true", help="create target tables that are not there")
    parser.add_argument("--alter", action="store_true", help="add columns to the target that the source has got")
    parser.add_argument(
        "--start",
        default="snapshot",
        metavar="WHEN",
        help="where a new replication begins: snapshot (the rows that are there, then all changes), earliest (the "
        "oldest change of the log), latest, or a time (default: %(default)s)",
    )
    parser.add_argument(
        "--confidence",
        default="30 seconds",
        metavar="DURATION",
        help="how long after its time a write may become visible (default: %(default)s)",
    )
    parser.add_argument(
        "--every", default="1 second", metavar="DURATION", help="a batch's start to the next's (1 second)"
    )
    add_running(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    return running(args, lambda lines: supervise(_replication(args), args, lines))


def _replication(args: Namespace) -> Replication:
    if args.two_ways and args.servers:
        raise PenstockError(
            "--two-ways does not go through Kafka",
            where="penstock replicate",
            next="leave --through out, or start a replication for each direction without --two-ways, of other tables",
        )
    every: timedelta = duration(args.every, name="--every")
    source, target = source_access(args), target_access(args)
    pairs = table_pairs(args)
    same = next((pair for pair in pairs if pair.source == pair.target), None)
    if same and set(source.endpoints()) & set(target.endpoints()):
        raise PenstockError(
            f"{same.source} would be replicated to itself",
            where=source.hosts,
            next="give --to another cluster, or another table: penstock replicate TABLE TARGET ...",
        )
    return Replication(
        name=args.name,
        pairs=pairs,
        source=source,
        target_access=target,
        start=args.start,
        confidence=duration(args.confidence, name="--confidence"),
        create=args.create,
        alter=args.alter,
        every=every,
        target=default_target(every),
        through=_through(args),
        two_ways=args.two_ways,
    )


def _through(args: Namespace) -> Through | None:
    if args.servers is None:
        if args.registry or args.format or args.command_config:
            raise PenstockError(
                "--registry, --format and --command-config need --through",
                where="penstock replicate",
                next="give the brokers that changes go through, or leave them out",
            )
        return None
    options = command_config.options(args.command_config) if args.command_config else {}
    codec: EventCodec = args.format or ("json" if args.registry is None else "avro")
    if (codec == "json") != (args.registry is None):
        raise PenstockError(
            f"records in {codec} {'have no' if codec == 'json' else 'need a'} schema registry",
            where="penstock replicate",
            next="leave --registry out" if codec == "json" else "give --registry http://HOST:PORT",
        )
    return Through(args.servers, args.name, codec, args.registry, options)
