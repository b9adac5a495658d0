"""The connector classes that a worker runs: their properties and the checks of their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from penstock.connect import topics
from penstock.connect.definition import Property
from penstock.connect.records import sink_converters
from penstock.connect.sinks.cql import datastax_properties, properties as scylla_properties
from penstock.connect.sinks.cql.destination import CqlDestination
from penstock.connect.sinks.destination import Destination
from penstock.connect.sinks.files import file_stream, properties as files_properties
from penstock.connect.sinks.files.destination import FilesDestination
from penstock.connect.sinks.jdbc import properties as jdbc_properties
from penstock.connect.sinks.jdbc.destination import JdbcDestination
from penstock.connect.sinks.replication import properties as replication_properties
from penstock.connect.source import checks as source_checks, database, properties
from penstock.connect.transforms import sink_chain, source_chain
from penstock.errors import PenstockError

Config = Mapping[str, str]
Values = Mapping[str, Any]
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class ConnectorPlugin:
    """A connector class, and how Connect finds it: by its class, by the simple name, and by that without "Connector".

    `definitions` gives the properties whose names a configuration makes, `together` the errors between properties that
    are each valid, and `problems` what the database has against them. Names that begin with one of `free` are not
    checked. `destination` is where a valid configuration of a sink of records writes to; None for other classes.
    """

    name: str
    names: tuple[str, ...]
    type: Literal["source", "sink"]
    free: tuple[str, ...]
    properties: Callable[[], tuple[Property, ...]]
    definitions: Callable[[Config], list[Property]]
    together: Callable[[Values, Config], Problems]
    problems: Callable[[Values, Config], Problems]
    destination: Callable[[Values, Config], Destination] | None = None


def _of_sinks(config: Config) -> list[Property]:
    """Those of all sinks of records: of their transforms, and of converters that sources do not have."""
    return [*sink_chain.definitions(config), *sink_converters.definitions(config)]


def _of_source(config: Config) -> list[Property]:
    return [*source_chain.definitions(config), *topics.definitions(config)]


class SinkProperties(Protocol):
    """What the properties of a sink of records say, as a module."""

    @property
    def CLASS(self) -> str: ...
    @property
    def CLASS_NAMES(self) -> tuple[str, ...]: ...
    @property
    def FREE(self) -> tuple[str, ...]: ...
    @property
    def CONNECTION(self) -> str:
        """The property at which errors of the connection are reported."""

    def properties(self) -> tuple[Property, ...]: ...
    def definitions(self, config: Config) -> list[Property]: ...
    def together(self, values: Values, config: Config) -> Problems: ...
    def settings(self, values: Values, config: Config) -> Any: ...


def _sink(own: SinkProperties, destination: Callable[[Any], Destination]) -> ConnectorPlugin:
    """The plugin of a sink of records; `destination` takes its settings."""

    def reported(values: Values, config: Config) -> Problems:
        try:
            yield from destination(own.settings(values, config)).problems()
        except PenstockError as error:
            yield own.CONNECTION, str(error)

    return ConnectorPlugin(
        own.CLASS,
        own.CLASS_NAMES,
        "sink",
        own.FREE,
        own.properties,
        lambda config: [*_of_sinks(config), *own.definitions(config)],
        own.together,
        reported,
        lambda values, config: destination(own.settings(values, config)),
    )


SOURCE = ConnectorPlugin(
    properties.CLASS,
    properties.CLASS_NAMES,
    "source",
    properties.FREE,
    properties.properties,
    _of_source,
    source_checks.together,
    lambda values, config: database.problems(values),
)
SINK = _sink(scylla_properties, CqlDestination)
DATASTAX_SINK = _sink(datastax_properties, CqlDestination)
JDBC_SINK = _sink(jdbc_properties, JdbcDestination)
FILES_SINK = _sink(files_properties, FilesDestination)
FILE_STREAM_SINK = _sink(file_stream, file_stream.FileDestination)
REPLICATION_SINK = ConnectorPlugin(
    replication_properties.CLASS,
    replication_properties.CLASS_NAMES,
    "sink",
    replication_properties.FREE,
    replication_properties.properties,
    replication_properties.definitions,
    replication_properties.together,
    replication_properties.problems,
)
PLUGINS = (SOURCE, SINK, DATASTAX_SINK, JDBC_SINK, FILE_STREAM_SINK, FILES_SINK, REPLICATION_SINK)


def plugin_named(name: str) -> ConnectorPlugin | None:
    """The plugin of a class, by its full or short name."""
    return next((plugin for plugin in PLUGINS if name in plugin.names), None)


def plugin_of(config: Mapping[str, str]) -> ConnectorPlugin:
    """The plugin of a configuration; the first one if it names none, whose checks say so."""
    return plugin_named(config.get("connector.class", "")) or SOURCE
