"""`penstock state`: shows the state of queries as JSON, read from checkpoints or from PostgreSQL."""

from __future__ import annotations

import json
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

from penstock.cli.arguments import add_allow_host, add_checkpoints, add_command, port_or_any, positive
from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.process.signals import listen
from penstock.state.stores import LIMIT, States

PORT = 8084
EXAMPLES = {
    "list": ("state list",),
    "get": ("state get counts ann", """state get counts/totals '{"user": "ann", "country": "at"}'"""),
    "scan": ("""state scan counts --where "value.count > 3" --limit 10""",),
    "serve": ("state serve --port 8084",),
}


def add(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "list", "list the names of all states, and how fresh they are", _list)
    get = _action(actions, "get", "show the rows of a key, and how fresh they are", _get)
    get.add_argument("name", metavar="NAME", help="as shown by `list`, or its start: PIPELINE[/QUERY][/OPERATOR]")
    get.add_argument("key", metavar="KEY", help="the key as a string, or a JSON object of several columns or fields")
    scan = _action(actions, "scan", "show rows of a state, in no order", _scan)
    scan.add_argument("name", metavar="NAME", help="as for `get`")
    scan.add_argument("--where", metavar="SQL", help="for example \"key.user = 'ann' AND value.count > 3\"")
    for command in (get, scan):
        command.add_argument("--limit", type=positive, default=LIMIT, metavar="N", help="rows (default: %(default)s)")
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
    parser = add_command(actions, name, line, *EXAMPLES[name])
    add_checkpoints(parser)
    parser.add_argument(
        "--postgres", metavar="URL", help="read the tables that postgres.sink writes there, instead of checkpoints"
    )
    parser.add_argument("--cores", type=positive, default=2, metavar="N", help="cores for Spark (default: %(default)s)")
    parser.set_defaults(act=act)
    return parser


def _list(states: States, args: Namespace) -> None:
    listed = states.overview()
    for state in listed:
        print(json.dumps(state))
    if not listed:
        where, step = (
            f"in {args.checkpoints}",
            "start a pipeline that counts, joins or keeps windows, tables or segments",
        )
        if args.postgres:
            where, step = "in the database", "write a table with postgres.sink"
        print(f"penstock: no state {where}. Next: {step}, and wait for its first batch", file=sys.stderr)


def _get(states: States, args: Namespace) -> None:
    print(exact_json.dumps(states.get(args.name, args.key, args.limit).to_json()))


def _scan(states: States, args: Namespace) -> None:
    print(exact_json.dumps(states.scan(args.name, args.where, args.limit).to_json()))


def _serve(states: States, args: Namespace) -> None:
    from penstock.serve.access.hosts import Hosts, is_loopback, warn_if_open
    from penstock.serve.rest_server import RestServer, bind
    from penstock.state.serve import app
    from penstock.watch.program import Program, reached_at
    from penstock.watch.run_files import written
    from penstock.watch.served_app import observed

    ended = threading.Event()
    listen(ended)
    with bind(args.host, args.port) as bound:
        states.overview()
        program = Program("state", "state")
        watched = observed(app(states), program, partial(_unready, states), is_open=not is_loopback(args.host))
        server = RestServer(watched, bound, Hosts((args.host, *args.allow_host)))
        warn_if_open(args.host, "read all state")
        checkpoints = None if args.postgres else str(args.checkpoints.resolve())
        with written(program.run_file(reached_at(bound), checkpoint=checkpoints)):
            print(f"serving state at {server.url}/state", flush=True)
            ended.wait()
            server.close()


def _unready(states: States) -> list[str]:
    try:
        states.overview()
    except PenstockError as error:
        return [str(error)]
    return []


@contextmanager
def _states(args: Namespace) -> Iterator[States]:
    if args.postgres:
        from penstock.state.postgres_state import PostgresState

        yield PostgresState(args.postgres)
        return
    from penstock.state.direct import Direct

    with_spark = cache(partial(_with_spark, args))
    with ExitStack() as stack:
        starting = threading.Lock()

        def spark() -> States:
            # The server answers in threads.
            with starting:
                return with_spark(stack)

        yield Direct(args.checkpoints.resolve(), spark)


def _with_spark(args: Namespace, stack: ExitStack) -> States:
    """The states as Spark reads them, until the stack ends."""
    from penstock.spark_runtime.session import local_session, until_end
    from penstock.state.read import Checkpoints

    session = local_session("penstock-state", args.cores)
    stack.enter_context(until_end(session))
    return Checkpoints(args.checkpoints.resolve(), lambda: session)
