"""The processes of this demo besides the services, the pipeline and the load: ingest, and deliveries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.local import ports
from penstock.local.process import uninterrupted
from penstock.serve.http_client import Address, NoHttpAnswer, fetch_blocking
from penstock_demo.adtech import site
from penstock_demo.parts import INGEST, PENSTOCK, Part, Printing
from penstock_demo.stage import Running

PATIENCE = 30.0
TEXT = """\
servers = "{servers}"
listen = "{address}"
schemas = "schemas"
workers = {workers}

[topics.{topic}]
key = "tracker"

[timeouts]
kafka = "{patience} seconds"
"""


class Ingest(Part):
    """`penstock ingest` at a fixed port; `close` lets it answer the requests in flight."""

    def __init__(self, root: Path, servers: str, *, stay: bool, workers: int = 1) -> None:
        self.address = f"{ports.HOST}:{ports.free(set())}"
        (root / "schemas").mkdir(exist_ok=True)
        (root / "schemas" / f"{site.EVENTS}.json").write_text(json.dumps(site.SCHEMA))
        # Half of the time that the rules wait: a request that reaches Kafka after it would be late.
        patience = site.LATE // 2000
        (root / INGEST).write_text(
            TEXT.format(servers=servers, address=self.address, topic=site.EVENTS, patience=patience, workers=workers)
        )
        command = [*PENSTOCK, "ingest", str(root / INGEST)]
        super().__init__("ingest", command, {}, root / "ingest.log", stay=stay, patience=PATIENCE)

    @property
    def serves(self) -> bool:
        try:
            return fetch_blocking(Address(f"http://{self.address}", None), "/health", patience=1).status == 200
        except NoHttpAnswer:
            return False


class Delivery(Printing):
    """A running `penstock segment sync` of one segment; `receipt` is available once `done`."""

    def __init__(self, root: Path, running: Running, segment: str, mode: str) -> None:
        words = ["segment", "sync", segment, f"--{mode}", "--to", site.DELIVERED]
        words += ["--keyspace", site.KEYSPACE, "--hosts", running.cql, "--servers", running.kafka]
        super().__init__(root / "deliveries.log", words)

    @property
    def receipt(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.printed("a delivery failed; its log"))
        return told


def start_deliveries(root: Path, running: Running, segments: Iterable[str], mode: str) -> dict[str, Delivery]:
    """Start a delivery of each segment, in parallel."""
    with uninterrupted():
        return {segment: Delivery(root, running, segment, mode) for segment in segments}
