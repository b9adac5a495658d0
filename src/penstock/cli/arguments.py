"""What several commands share: help texts with examples, and arguments, whose wrong values argparse reports."""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.durations import whole
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.checkpoint.checkpoint_folder import Location

WRONG_CHOICE = re.compile(r"invalid choice: '([^']*)'")
WRONG_OPTION = re.compile(r"unrecognized arguments: (?:.* )?(--?[\w-]+)")


class CommandParser(ArgumentParser):
    """A parser that takes options by their whole names, and offers the names that are near to a wrong one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # The beginning of a name may mean another option in the next release, or in Kafka's own tools.
        super().__init__(*args, **options | {"allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; the parser of a command reports its unknown arguments itself, with its own usage."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        match = WRONG_CHOICE.search(message) or WRONG_OPTION.search(message)
        close = _close(match[1], {*_names(self)}) if match else ""
        super().error(f"{message}. Next: did you mean {close}?" if close else message)


def _close(name: str, names: set[str]) -> str:
    """The name that begins as a wrong one does, or is similar to it; "" if there is none."""
    longer = [option for option in sorted(names) if name.startswith("--") and option.startswith(name)]
    return next(iter(longer or get_close_matches(name, names, 1)), "")


def _names(parser: ArgumentParser) -> Iterator[str]:
    """The options and choices of a parser and of those below it."""
    for action in parser._actions:
        yield from action.option_strings
        yield from _choices(action)


def _choices(action: Action) -> Iterator[str]:
    for name in action.choices or ():
        yield str(name)
        if isinstance(action.choices, dict) and isinstance(below := action.choices[name], ArgumentParser):
            yield from _names(below)


def add_command(commands: Any, name: str, line: str, *examples: str) -> ArgumentParser:
    """Add a command, or an action of one, with its line in the list; `examples`, without `penstock`, end its help."""
    parser: ArgumentParser = commands.add_parser(
        name,
        help=line,
        description=f"{line[0].upper()}{line[1:]}.",
        epilog=as_examples(examples),
        formatter_class=RawDescriptionHelpFormatter,
    )
    return parser


def add_kafkas_names(parser: ArgumentParser, option: str, *names: str) -> None:
    """Take the names that Kafka's own tools have for an option; messages go on to name ours."""
    action = parser._option_string_actions[option]
    parser._option_string_actions |= dict.fromkeys(names, action)
    action.help = f"{action.help}; also {' and '.join(names)}, as in Kafka's own tools"


def as_examples(examples: tuple[str, ...]) -> str:
    """The part of a help text that shows commands."""
    return "\n".join(("examples:", *(f"  penstock {text}" for text in examples)))


def positive(text: str) -> int:
    number = whole(text, 1)
    if number is None:
        raise ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return number


def port(text: str) -> int:
    number = whole(text, 1, 65535)
    if number is None:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return number


def port_or_any(text: str) -> int:
    """A port to listen on; 0 is any free port."""
    return 0 if text == "0" else port(text)


def servers(text: str) -> str:
    """The addresses of Kafka's brokers."""
    # Imported here: commands without Kafka use this module, too.
    from penstock.wire.cluster import addresses

    try:
        addresses(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def add_command_config(parser: ArgumentParser) -> None:
    """Add the TLS and the login of `--servers`; `command_config.security` reads it."""
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="properties file with security.protocol, ssl.* and sasl.*, as Kafka's own tools take it; with --servers",
    )


def size(text: str) -> str:
    """Bytes in Spark's form."""
    if not re.fullmatch(r"[1-9]\d{0,11}[kmgt]b?", text, re.IGNORECASE):
        raise ArgumentTypeError(f"{text!r} is not a size, as in 700m or 4g")
    return text


def setting(text: str) -> tuple[str, str]:
    """A setting of Spark as NAME=VALUE."""
    from penstock.spark_runtime.settings import pair

    try:
        return pair(text)
    except PenstockError as error:
        raise ArgumentTypeError(f"{error.what}. Next: {error.next}") from None


def add_spark(parser: ArgumentParser) -> None:
    """Add where Spark runs and with what; `spark_conf` reads it."""
    group = parser.add_argument_group("Spark", "docs/cluster.md has what else can set these")
    group.add_argument(
        "--master", metavar="URL", help="the cluster, as in spark://HOST:7077 or k8s://https://HOST:6443"
    )
    for name, (_, kind, text) in RESOURCES.items():
        group.add_argument(f"--{name}", type=kind, metavar="SIZE" if kind is size else "N", help=text)
    group.add_argument(
        "--conf", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated"
    )


RESOURCES: dict[str, tuple[str, Callable[[str], str | int], str]] = {
    "driver-memory": ("spark.driver.memory", size, "memory of the driver's JVM, which is all of a local Spark (1g)"),
    "executors": ("spark.executor.instances", positive, "executors on a cluster"),
    "executor-memory": ("spark.executor.memory", size, "memory of an executor's JVM (1g)"),
    "executor-cores": ("spark.executor.cores", positive, "tasks of an executor at a time"),
    "state-memory": (
        "spark.executorEnv.PENSTOCK_STATE_MEMORY",
        size,
        "state of an executor's windows, tables, joins and segments in memory; the rest is on its disk (a quarter of "
        "the memory of an executor or, local, of the machine)",
    ),
}
"""Their settings, types and help."""


def spark_conf(args: Namespace) -> dict[str, str]:
    """The settings of Spark that a command line has; `--conf` overrules the options with names of their own."""
    named = {"spark.master": args.master}
    named |= {key: getattr(args, name.replace("-", "_")) for name, (key, _, _) in RESOURCES.items()}
    return {key: str(value) for key, value in named.items() if value is not None} | dict(args.conf)


def add_target(parser: ArgumentParser) -> None:
    """Add the pipeline that a command is about."""
    parser.add_argument("target", metavar="FILE.py:PIPELINE", help="the file and the function marked with @pipeline")


def add_wait(parser: ArgumentParser) -> None:
    """Add `--wait`: the seconds that servers may take to answer."""
    parser.add_argument(
        "--wait",
        type=positive,
        default=20,
        metavar="SECONDS",
        help="how long servers may take to answer (default: %(default)s)",
    )


def add_allow_host(parser: ArgumentParser) -> None:
    """Add `--allow-host`: names by which callers may address a server, besides the default ones."""
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that callers use for this server, *.NAME for all names below it; may be repeated. "
        "Always allowed: localhost, this machine's name, --host, and IP addresses",
    )


def add_checkpoints(parser: ArgumentParser, *, anywhere: bool = False) -> None:
    """Add `--checkpoints`: the folder in which `penstock run` keeps a folder per pipeline; with `anywhere` also a URI
    of Hadoop's."""
    parser.add_argument(
        "--checkpoints",
        type=_location if anywhere else folder_here,
        default=Path(".penstock/checkpoints"),
        metavar="DIR",
        help=f"folder{' or URI' if anywhere else ''} of the pipelines' checkpoints, one subfolder per pipeline "
        "(default: %(default)s)",
    )


def checkpoints(args: Namespace) -> Location:
    """The value of `--checkpoints`, with a whole path."""
    location: Location = args.checkpoints
    return location.resolve() if isinstance(location, Path) else location


def _location(text: str) -> Location:
    # The help of all commands loads none of them.
    from penstock.checkpoint.checkpoint_folder import location

    return location(text)


def folder_here(text: str) -> Path:
    """A folder of this machine; another file system is refused, whose URI would be the name of a folder here."""
    location = _location(text)
    if isinstance(location, Path):
        return location
    raise ArgumentTypeError(f"{text} is not a folder of this machine, and this command reads no other")


NO_METRICS = "none"


def add_lineage(parser: ArgumentParser) -> None:
    """Add `--lineage`: the URL of a receiver of OpenLineage events, or None."""
    parser.add_argument(
        "--lineage", metavar="URL", help="send OpenLineage events of the queries to this receiver, such as Marquez"
    )


def add_metrics(parser: ArgumentParser, when: str = "") -> None:
    """Add `--metrics`: where the command serves its metrics; `args.metrics` is host and port, or None for nowhere.

    `when` begins the help: when the command serves metrics, if not always.
    """
    parser.add_argument(
        "--metrics",
        type=listen_place,
        default=("127.0.0.1", 0),
        metavar="HOST:PORT",
        help=f"{when}serve /metrics, /health, /ready and /status here; none turns it off (default: 127.0.0.1 and a "
        "free port, which penstock status and penstock console find)",
    )


def listen_place(text: str) -> tuple[str, int] | None:
    """A host and a port to listen on, where 0 is any free port; None for "none"."""
    if text == NO_METRICS:
        return None
    host, colon, number = text.rpartition(":")
    if not colon or not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9400, or none")
    return host.removeprefix("[").removesuffix("]"), port_or_any(number)
