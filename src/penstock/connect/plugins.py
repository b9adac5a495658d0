"""The connector classes that a worker runs: their properties and the checks of their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.connect import database, properties, source_checks, topics
from penstock.connect.definition import Property
from penstock.connect.record_transforms import sink_transforms
from penstock.connect.records import sink_converters
from penstock.connect.sinks.cql import checks as sink_checks, datastax_properties, properties as sink_properties
from penstock.connect.sinks.cql.destination import CqlDestination
from penstock.connect.sinks.cql.routes import CqlSettings, PropertyNames
from penstock.connect.sinks.destination import Destination
from penstock.connect.sinks.files import destination as topic_files, file_stream, properties as files_properties
from penstock.connect.sinks.files.destination import FilesDestination
from penstock.connect.sinks.files.file_stream import FileDestination
from penstock.connect.sinks.jdbc import destination as jdbc_destination, properties as jdbc_properties
from penstock.connect.sinks.jdbc.destination import JdbcDestination
from penstock.connect.sinks.replication import properties as replication_properties
from penstock.connect.transforms import transform_chain
from penstock.errors import PenstockError

Config = Mapping[str, str]
Values = Mapping[str, Any]
Problems = Iterable[tuple[str, str]]


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
    return [*sink_transforms.definitions(config), *sink_converters.definitions(config)]


def _of_source(config: Config) -> list[Property]:
    return [*transform_chain.definitions(config), *topics.definitions(config)]


def _of_tables(config: Config) -> list[Property]:
    return [*_of_sinks(config), *sink_properties.definitions(config)]


def _of_mapped_tables(config: Config) -> list[Property]:
    return [*_of_sinks(config), *datastax_properties.definitions(config)]


def _of_driver(config: Config) -> list[Property]:
    return [*_of_sinks(config), *jdbc_properties.definitions(config)]


Settings = Callable[[Values, Config], CqlSettings]


def _cql(settings: Settings) -> Callable[[Values, Config], Destination]:
    return lambda values, config: CqlDestination(settings(values, config))


def _of_sink(settings: Settings, names: PropertyNames) -> Callable[..., Problems]:
    def problems(values: Values, config: Config) -> Iterator[tuple[str, str]]:
        try:
            yield from sink_checks.problems(settings(values, config))
        except PenstockError as error:
            yield names.tls, str(error)

    return problems


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
SINK = ConnectorPlugin(
    sink_properties.CLASS,
    sink_properties.CLASS_NAMES,
    "sink",
    sink_properties.FREE,
    sink_properties.properties,
    _of_tables,
    sink_properties.together,
    _of_sink(sink_properties.settings, sink_properties.NAMES),
    _cql(sink_properties.settings),
)
DATASTAX_SINK = ConnectorPlugin(
    datastax_properties.CLASS,
    datastax_properties.CLASS_NAMES,
    "sink",
    datastax_properties.FREE,
    datastax_properties.properties,
    _of_mapped_tables,
    datastax_properties.together,
    _of_sink(datastax_properties.settings, datastax_properties.NAMES),
    _cql(datastax_properties.settings),
)
JDBC_SINK = ConnectorPlugin(
    jdbc_properties.CLASS,
    jdbc_properties.CLASS_NAMES,
    "sink",
    jdbc_properties.FREE,
    jdbc_properties.properties,
    _of_driver,
    jdbc_properties.together,
    lambda values, config: jdbc_destination.problems(jdbc_properties.settings(values, config)),
    lambda values, config: JdbcDestination(jdbc_properties.settings(values, config)),
)
FILE_STREAM_SINK = ConnectorPlugin(
    file_stream.CLASS,
    file_stream.CLASS_NAMES,
    "sink",
    file_stream.FREE,
    file_stream.properties,
    _of_sinks,
    file_stream.together,
    lambda values, config: file_stream.problems(values),
    lambda values, config: FileDestination.of(values),
)
FILES_SINK = ConnectorPlugin(
    files_properties.CLASS,
    files_properties.CLASS_NAMES,
    "sink",
    files_properties.FREE,
    files_properties.properties,
    _of_sinks,
    files_properties.together,
    lambda values, config: topic_files.problems(files_properties.settings(values)),
    lambda values, config: FilesDestination(files_properties.settings(values)),
)
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
