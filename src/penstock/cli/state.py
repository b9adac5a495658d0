"""`penstock state`: shows the state of queries as JSON, read from checkpoints or from PostgreSQL."""

from __future__ import annotations

import json
import logging
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from penstock.cli.arguments import add_allow_host, add_checkpoints, port_or_any, positive
from penstock.signals import listen
from penstock.state.stores import LIMIT, States

PORT = 8084


def add(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "list", "list the names of all states, and how fresh they are", _list)
    get = _action(actions, "get", "show the rows of a key, and how fresh they are", _get)
    get.add_argument("name", metavar="NAME", help="as shown by `list`, or its start: PIPELINE[/QUERY][/OPERATOR]")
    get.add_argument("key", metavar="KEY", help="the key as a string, or a JSON object of several columns or fields")
    scan = _action(actions, "scan", "show rows of a state, in no order", _scan)
    scan.add_argument("name", metavar="NAME", help="as for `get`")
    scan.add_argument("--where", metavar="SQL", help="for example \"key.user = 'ann' AND value.count > 3\"")
    for one in (get, scan):
        one.add_argument("--limit", type=positive, default=LIMIT, metavar="N", help="rows (default: %(default)s)")
    serve = _action(actions, "serve", "answer over HTTP until Ctrl-C", _serve)
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    serve.add_argument("--port", type=port_or_any, default=PORT, help="0 is any free port (default: %(default)s)")
    add_allow_host(serve)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    with _states(args) as states:
        args.act(states, args)
    return 0


def _action(actions: Any, name: str, line: str, act: Any) -> ArgumentParser:
    parser: ArgumentParser = actions.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
    add_checkpoints(parser)
    parser.add_argument(
        "--postgres", metavar="URL", help="read the tables that postgres.sink writes there, instead of checkpoints"
    )
    parser.add_argument("--cores", type=positive, default=2, metavar="N", help="cores for Spark (default: %(default)s)")
    parser.set_defaults(act=act)
    return parser


def _list(states: States, args: Namespace) -> None:
    for one in states.overview():
        print(json.dumps(one))


def _get(states: States, args: Namespace) -> None:
    print(json.dumps(states.get(args.name, args.key, args.limit).told()))


def _scan(states: States, args: Namespace) -> None:
    print(json.dumps(states.scan(args.name, args.where, args.limit).told()))


def _serve(states: States, args: Namespace) -> None:
    from penstock.connect.rest_server import RestServer, bind
    from penstock.hosts import Hosts, warn_if_open
    from penstock.state.serve import app

    ended = threading.Event()
    listen(ended)
    with bind(args.host, args.port) as bound:
        states.overview()
        server = RestServer(app(states), bound, Hosts((args.host, *args.allow_host)))
        warn_if_open(args.host, "read all state")
        print(f"serving state at {server.url}/state", flush=True)
        ended.wait()
        server.close()


@contextmanager
def _states(args: Namespace) -> Iterator[States]:
    if args.postgres:
        from penstock.state.postgres_state import PostgresState

        yield PostgresState(args.postgres)
        return
    from penstock.session import end, session_of_program
    from penstock.state.read import Checkpoints

    session = cache(lambda: session_of_program("penstock-state", args.cores, verbose=False))
    try:
        if args.act is _serve:
            session()  # starts now, so that the first request does not wait for seconds
        yield Checkpoints(args.checkpoints.resolve(), session)
    finally:
        if session.cache_info().currsize:
            logging.disable(logging.CRITICAL)  # py4j logs errors when it ends
            end(session())
