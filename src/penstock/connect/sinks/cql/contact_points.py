"""How a configuration says to reach its cluster: a login, TLS, and contact points.

Contact points are the nodes to connect to first, or a JSON object with the addresses where nodes are reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.connect.definition import of_property
from penstock.database.access import Access

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+)(?::(\d{1,5}))?")
MOST_NODES = 1000
"""The most nodes whose addresses are translated."""
LOCAL = "127.0.0.1"
"""The contact point of a configuration without one."""


@dataclass(frozen=True)
class ConnectionSettings:
    """The properties of both sink connectors that say how to connect."""

    points: str = field(metadata=of_property("scylladb.contact.points", "contactPoints"))
    port: int = field(metadata=of_property("scylladb.port", "port"))
    """Of nodes that are given without one."""
    user: str = field(metadata=of_property("scylladb.username", "auth.username"))
    password: str = field(repr=False, metadata=of_property("scylladb.password", "auth.password"))
    local_dc: str = field(metadata=of_property("scylladb.loadbalancing.localdc", "loadBalancing.localDc"))
    consistency: str = field(
        metadata=of_property("scylladb.consistency.level", "datastax-java-driver.basic.request.consistency")
    )
    tls: bool = field(metadata=of_property("scylladb.ssl.enabled"))
    verify_hostname: bool = field(metadata=of_property("scylladb.ssl.hostname.verification", "ssl.hostnameValidation"))
    files: Mapping[str, str]
    """The arguments `ca`, `certificate` and `key` of `Access`."""

    def access(self) -> Access:
        hosts, translations = reached(self.points or LOCAL, self.port)
        return Access(
            hosts,
            self.user,
            self.password,
            self.local_dc,
            self.consistency,
            tls=self.tls,
            verify_hostname=self.verify_hostname,
            translated=translations,
            **self.files,
        )


def problem(text: str) -> str | None:
    """Why a text is no list of contact points; None if it is one."""
    try:
        points = [each for pair in translated(text) for each in pair] or text.split(",")
    except ValueError as error:
        return str(error)
    for point in points:
        match = _ADDRESS.fullmatch(point.strip())
        if not match or (match[1] and not 0 < int(match[1]) < 65536):
            return f"{point.strip() or 'an empty entry'} is not a host, or host:port"
    return None


def translated(text: str) -> tuple[tuple[str, str], ...]:
    """The nodes' own addresses and those where they are reached, of contact points that are a JSON object.

    Empty for other contact points; raises ValueError if it is no such object.
    """
    if not text.lstrip().startswith("{"):
        return ()
    try:
        addresses = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not addresses or len(addresses) > MOST_NODES or not all(isinstance(point, str) for point in addresses.values()):
        example = '{"10.0.0.1:9042": "db1.example.com:9042"}'
        raise ValueError(f"it must have the public address of 1 to {MOST_NODES} nodes by their own, as in {example}")
    return tuple((own.strip(), reached.strip()) for own, reached in addresses.items())


def reached(points: str, port: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Contact points, with this port where they have none; and pairs of addresses, if they are translated."""
    has_port = re.compile(r"(?:\[.*\]|[^:]+):\d+")

    def whole(point: str) -> str:
        return point if has_port.fullmatch(point) else f"{point}:{port}"

    nodes = tuple((whole(own), whole(other)) for own, other in translated(points))
    hosts = [other for _, other in nodes] or [whole(point.strip()) for point in points.split(",")]
    return ",".join(hosts), nodes
