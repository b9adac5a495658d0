"""A Kafka that a command or the console asks: the addresses of its brokers, with the security of the connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.kafka.security import Security

PLAINTEXT = Security.of({})
"""Neither TLS nor a login."""


@dataclass(frozen=True)
class Brokers:
    """Addresses and login belong together, so that no login is sent to addresses from elsewhere."""

    servers: str
    security: Security = PLAINTEXT

    def __str__(self) -> str:
        return self.servers

    def client(self) -> dict[str, Any]:
        """The options of our Kafka client; reads the files of TLS, and raises `PenstockError` if that fails."""
        return {"tls": self.security.tls(), "authenticate": self.security.authenticate()}

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes. It has the passwords: only for a pipe to a process of our own."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Brokers:
        return cls(document["servers"], Security(**document["security"]))
