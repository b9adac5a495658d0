"""What the REST API of `penstock connect` and its topic of configurations take in: JSON, and configurations in it.

A body is JSON as `json` reads it or refused with a status; a configuration gives a `validate` answer that has no
secret in it, and what was shown is taken back; a record of the topic gives a connector or is left out. The first byte
of an input says which of these it is.
"""

from __future__ import annotations

import json
import logging
import random as randoms
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from penstock.connect.source.properties import CLASS, properties
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import STATES, connectors
from penstock.connect.worker.plugin_routes import validation
from penstock.connect.worker.providers import NAMING, Provided, Provider
from penstock.connect.worker.routes import as_config
from penstock.connect.worker.secrets import is_secret, masked, restored
from penstock.serve.json_bodies import decoded
from penstock.serve.rest_errors import RestError

from .mutate import mutated
from .runner import Decoder, Difference

VALIDATE, RECORD, DAMAGED = 0, 1, 2
TOKEN = "s3cr3t-"
"""Begins every secret that is drawn. In damaged input it may stand where nobody can tell that it is one."""
FOUND = f"{TOKEN}of-a-file"
"""What the reference stands for."""
RIGHT = {"name": "c", "connector.class": CLASS, "topic.prefix": "p", "scylla.table.names": "ks.t"}
RIGHT |= {"scylla.cluster.ip.addresses": "127.0.0.1:1"}
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.confluent.connect.avro.AvroConverter"
_NAMES = (
    *(each.name for each in properties()),
    *(
        f"{side}.converter{part}"
        for side in ("key", "value")
        for part in ("", ".schemas.enable", ".schema.registry.url")
    ),
    "value.converter.basic.auth.user.info",
    "transforms.a.type",
    "transforms.a.field",
    "transforms.a.token",
    "transforms.a.predicate",
    "predicates.p.type",
    "predicates.p.pattern",
    "topic.creation.default.partitions",
    "topic.creation.default.replication.factor",
    "topic.creation.g.include",
    "producer.override.acks",
    "producer.override.linger.ms",
    "producer.override.sasl.jaas.config",
    "unknown.password",
    "é",
    "",
)
_VALUES = (
    "1", "-1", "true", "x", "a,b", "", " ", "9" * 30, "1e3", "\x00", "é", "[hidden]", "http://u:[hidden]@h", "a", "p",
    "g", _JSON, _AVRO, "http://registry:8081", "advanced", "full", "required", "[", "(a+)+$", "${x:y}",
    "${dir:/none:n}",
    "org.apache.kafka.connect.transforms.ReplaceField$Value", "org.apache.kafka.connect.transforms.RegexRouter",
    "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
)  # fmt: skip


@cache
def _provided() -> Provided:
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    (folder / "tok").write_text(FOUND)
    return Provided({"dir": Provider("dir", (folder,))}, {"key.converter": _JSON, "value.converter": _JSON})


def _value(random: randoms.Random, name: str) -> Any:
    if is_secret(name):
        return f"{TOKEN}{random.randrange(10**9):09}"
    kind = random.random()
    if kind < 0.15:
        return "${dir:FOLDER:tok}"
    if kind < 0.2 and name not in NAMING:
        return f"http://user:{TOKEN}{random.randrange(10**9):09}@host/?a=b"
    if kind < 0.3:
        return random.choice((1, 2.5, True, None, [], {"a": []}, 10**40))
    return random.choice(_VALUES)


def _draw(random: randoms.Random) -> bytes:
    config: dict[str, Any] = dict(RIGHT) if random.random() < 0.8 else {}
    for name in random.choices(_NAMES, k=random.randrange(8)):
        config[name] = _value(random, name)
    if random.random() < 0.3:
        config |= {"transforms": random.choice(("a", "a,b", "")), "predicates": random.choice(("p", "p,p"))}
    text, kind = json.dumps(config, ensure_ascii=random.random() < 0.5), VALIDATE
    if random.random() < 0.1:
        kind = DAMAGED
        odd = ("[" * 2000, "NaN", "1" * 5000, '"\\ud800"', "-", "{" + '"a":{' * 30, "\ufeff", "1e999")
        at = random.randrange(len(text))
        text = text[:at] + random.choice(odd) + text[at:]
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        state = json.dumps({"state": random.choice((*STATES, 1, None)), "state.v2": random.choice(STATES)})
        both = [b'{"properties":' + data + b"}", state.encode()]
        data, kind = b"\n".join(both), RECORD
    if random.random() < 0.4:
        return bytes([RECORD if kind == RECORD else DAMAGED]) + mutated(random, data)
    return bytes([kind]) + data


def _check(data: bytes) -> bool:
    logging.disable(logging.CRITICAL)
    if data[:1] == bytes([RECORD]):
        return _record(data[1:])
    return _validated(data[1:], FOUND if data[:1] == bytes([DAMAGED]) else TOKEN)


def _validated(data: bytes, secret: str) -> bool:
    try:
        body = decoded(data)
    except RestError as error:
        if error.status != 400:
            raise Difference(f"{error.status} {error}") from error
        return False
    if body != json.loads(data):
        raise Difference(f"{body} and {json.loads(data)}")
    try:
        config = as_config(body)
    except RestError as error:
        _require_hidden(str(error), secret)
        return False
    folder = str(_provided().providers["dir"].paths[0])
    config = {name: text.replace("FOLDER", folder) for name, text in config.items()}
    checked = check(config, _provided(), ask=False)
    _require_hidden(json.dumps(validation(CLASS, checked), ensure_ascii=False).encode().decode(), secret)
    _require_hidden(json.dumps(masked(config)), secret)
    if restored(masked(config), config) != config:
        raise Difference(f"{masked(config)} is not taken back for {config}")
    return not checked.messages


def _require_hidden(text: str, secret: str) -> None:
    if secret in text:
        raise Difference(f"a secret is shown: {text[max(0, text.index(secret) - 200) :][:400]}")


def _record(data: bytes) -> bool:
    config, _, state = data.partition(b"\n")
    found = connectors(
        [("connector-c", config), ("target-state-c", state), ("connector-d", b'{"properties": {"a": "b"}}')]
    )
    if found.pop("d").config != {"a": "b"}:
        raise Difference("the other connector is not there")
    for kept in found.values():
        said = {name: text for name, text in json.loads(config)["properties"].items() if text is not None}
        if kept.state not in STATES or kept.config != said:
            raise Difference(f"{kept} of {config!r}")
    return bool(found)


DECODER = Decoder(name="connect_json", draw=_draw, check=_check)
