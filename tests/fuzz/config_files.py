"""Files of operators: the TOML of `penstock ingest` and the properties of `penstock connect`'s worker.

Any bytes give settings or a `PenstockError`; settings are what `tomllib` and `javaproperties` read.
"""

from __future__ import annotations

import random as randoms
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import javaproperties

from penstock.connect.worker import settings as connect
from penstock.errors import PenstockError
from penstock.ingest import ingest_settings as ingest

from .mutate import mutated
from .runner import Decoder, Difference

TOML, PROPERTIES = 0, 1
_TOML = """\
servers = "kafka-1:9092"
listen = "127.0.0.1:8080"
workers = 1
[topics.clicks]
key = "user.id"
[topics.views]
[[keys]]
name = "web"
sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
topics = ["clicks"]
[limits]
body = 8_388_608
event = 1_000_000
[timeouts]
body = "10 seconds"
idle = "75 seconds"
[kafka]
"linger.ms" = 5
"""
_PROPERTIES = """\
# a worker
bootstrap.servers=kafka-1:9092
listeners=http://127.0.0.1:8083
config.storage.topic=configs
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter: org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable false
config.providers=env
config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
config.providers.env.param.allowlist.pattern=FUZZ_.*
producer.linger.ms=\\
   17
penstock.allowed.hosts=a.example,*.b.example
note=\\u00e9
"""
_TEXTS = (
    "", "x", "0", "-1", "9" * 30, "1e400", "nan", "inf", "true", "[]", "{}", '""', "'", '"\\ud800"', "1979-05-27",
    "07:32", "[[a]]",
    "[a.b.c]", "a.b = 1", "a = " + "[" * 500, "${env:NONE}", "${env:", "\\u00g", "\\", "é", "\x00", "a=b:c",
    "http://[::1]:70000", "http://:1", "h:0", "h:99999", "10 years", "1 second " * 99, "*", "../..", "/", "(", "[",
)  # fmt: skip


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="penstock-fuzz-")) / "file"


def _draw(random: randoms.Random) -> bytes:
    kind = random.choice((TOML, PROPERTIES))
    lines = (_TOML if kind == TOML else _PROPERTIES).splitlines()
    for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
        at = random.randrange(len(lines))
        separator = next((each for each in ("=", ":") if each in lines[at]), " ")
        name = lines[at].partition(separator)[0]
        lines[at] = random.choice((f"{name}{separator}{random.choice(_TEXTS)}", random.choice(_TEXTS), ""))
        lines.insert(random.randrange(len(lines)), random.choice(lines))
        lines = lines if random.random() < 0.7 else lines[: random.randrange(1, len(lines) + 1)]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return bytes([kind]) + (mutated(random, data) if random.random() < 0.3 else data)


def _check(data: bytes) -> bool:
    kind, file = data[:1], _file()
    file.write_bytes(data[1:])
    try:
        if kind == bytes([TOML]):
            _of_ingest(ingest.read(file, ingest.Given(None, None, (), None, None, None)), file)
        else:
            _of_worker(connect.read(file, None, None), file)
    except PenstockError as error:
        if len(str(error)) > 20 * len(data) + 2000:
            raise Difference(f"an error of {len(str(error))} characters") from error
        return False
    return True


def _of_ingest(settings: ingest.IngestSettings, file: Path) -> None:
    said: dict[str, Any] = tomllib.loads(file.read_text())
    if settings.servers != said["servers"] or set(settings.topics) != set(said.get("topics", ())):
        raise Difference(f"{settings} and {said}")
    if len(settings.keys) != len(said.get("keys", ())):
        raise Difference(f"{settings.keys} and {said}")


def _of_worker(settings: connect.WorkerSettings, file: Path) -> None:
    said: dict[str, str] = javaproperties.loads(file.read_text())
    if settings.servers != said["bootstrap.servers"] and "${" not in said["bootstrap.servers"]:
        raise Difference(f"{settings} and {said}")
    if not 0 <= settings.port <= 65535 or not settings.host:
        raise Difference(f"listens at {settings.host}:{settings.port}")


DECODER = Decoder(name="config_files", draw=_draw, check=_check)
