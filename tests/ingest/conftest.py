"""What the tests of ingest share: topics of the shared Kafka, and a server for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ingest_server import PARTITIONS, Site, ingest
from kafka_topics import new_topic

from penstock.cli.warm import PARTS
from penstock.local.services import Services
from penstock.serve.access.callers import new_key

CLICK = {
    "type": "object",
    "required": ["user", "n"],
    "properties": {"user": {"type": "string", "minLength": 1}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
CONFIG = """
servers = "{servers}"
[topics.{clicks}]
schema = "click.json"
key = "user"
[topics.{raw}]
[[keys]]
name = "web"
sha256 = "{web}"
topics = ["{clicks}"]
[[keys]]
name = "all"
sha256 = "{all}"
topics = ["*"]
[limits]
body = 200_000
event = 100_000
events = 1000
in_flight = 1_000_000
[timeouts]
body = "{body}"
[kafka]
"linger.ms" = 1
"""


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the loops over bodies first, so that no test waits for the compiler."""
    PARTS["ingest"]()


@pytest.fixture(scope="module")
def site(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(services, tmp_path_factory.mktemp("site"), body="1 hour") as made:
        yield made


@pytest.fixture
def impatient_site(services: Services, tmp_path: Path) -> Iterator[Site]:
    """A site that waits for a body for a second."""
    with serving(services, tmp_path, body="1 second") as made:
        yield made


@contextmanager
def serving(services: Services, folder: Path, *, body: str) -> Iterator[Site]:
    web, web_digest = new_key()
    everything, all_digest = new_key()
    (folder / "click.json").write_text(json.dumps(CLICK))
    with ExitStack() as stack:
        clicks, raw = (stack.enter_context(new_topic(services.kafka, name, PARTITIONS)) for name in ("clicks", "raw"))
        names = {
            "servers": services.kafka,
            "body": body,
            "clicks": clicks,
            "raw": raw,
            "web": web_digest,
            "all": all_digest,
        }
        (folder / "ingest.toml").write_text(CONFIG.format(**names))
        server = stack.enter_context(ingest(folder, folder / "ingest.toml"))
        yield Site(server, services.kafka, clicks, raw, web, everything)


@pytest.fixture
def mark() -> str:
    """A value that no other test's events have."""
    return uuid.uuid4().hex
