"""`penstock console`: serves a page about runs, topics, connectors and state until Ctrl-C."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from penstock.cli.arguments import add_command_config, folder_here, port_or_any, servers
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.console.settings import ConsoleSettings

LISTEN = "127.0.0.1:8085"


def add(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=_address,
        default=_address(LISTEN),
        metavar="HOST:PORT",
        help=f"where to listen; port 0 is any free one (default: {LISTEN})",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="URL",
        help="the metrics server of a run elsewhere; may be repeated. Runs of this user on this machine are found",
    )
    parser.add_argument(
        "--checkpoints", type=folder_here, metavar="DIR", help="show the pipelines of this folder that do not run, too"
    )
    parser.add_argument("--servers", type=servers, metavar="HOST:PORT,...", help="a Kafka besides those of the runs")
    add_command_config(parser)
    parser.add_argument("--registry", metavar="URL", help="the schema registry for Avro and Protobuf")
    parser.add_argument(
        "--connect", action="append", default=[], metavar="URL", help="a Kafka Connect cluster; may be repeated"
    )
    parser.add_argument("--prometheus", metavar="URL", help="for charts of more than 15 minutes")
    parser.add_argument("--state", metavar="URL", help="a `penstock state serve` for look-ups of state")
    parser.add_argument(
        "--allow-actions",
        action="store_true",
        help="allow to send dead letters again and to pause or restart connectors; the printed address has a token",
    )
    parser.add_argument(
        "--mask", action="append", default=[], metavar="FIELD", help="hide the values of this field; may be repeated"
    )
    parser.add_argument("--no-messages", action="store_true", help="show no keys, values or headers of records")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that browsers use for this server, *.NAME for all names below it; may be repeated",
    )
    parser.set_defaults(run=run)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), port_or_any(port)


def run(args: Namespace) -> int:
    # Imported here: the help needs none of it.
    from penstock.console.server import serve
    from penstock.serve.access.hosts import Hosts, warn_if_open
    from penstock.serve.rest_server import address_of, bind

    settings = _settings(args)
    host = args.listen[0]
    with bind(*args.listen) as bound:
        can = "read what the console shows" + (", and act with its token" if settings.token else "")
        warn_if_open(host, can)
        token = f"/#token={settings.token}" if settings.token else ""
        print(f"console at http://{address_of(bound)}{token}", flush=True)
        serve(settings, bound, Hosts((host, *args.allow_host)))
    return 0


def _settings(args: Namespace) -> ConsoleSettings:
    from penstock.cli.command_config import security
    from penstock.console.settings import ConsoleSettings
    from penstock.kafka.brokers import Brokers
    from penstock.serve.http_client import Address

    protected = security(args)
    return ConsoleSettings(
        targets=tuple(Address.of(url, "--target") for url in args.target),
        checkpoints=args.checkpoints,
        kafka=args.servers and Brokers(args.servers, protected),
        local=_local(),
        registry=args.registry,
        connect=tuple(Address.of(url, "--connect") for url in args.connect),
        prometheus=args.prometheus and Address.of(args.prometheus, "--prometheus"),
        state=args.state and Address.of(args.state, "--state"),
        token=secrets.token_urlsafe(32) if args.allow_actions else None,
        mask=tuple(args.mask),
        messages=not args.no_messages,
    )


def _local() -> str | None:
    """The Kafka of `penstock up` in this folder, if it runs."""
    from penstock.cli import services
    from penstock.local.services import ROOT

    try:
        return services.kafka(ROOT)
    except PenstockError:
        return None
