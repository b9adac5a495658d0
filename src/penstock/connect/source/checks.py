"""Checks of several properties of the CDC connector together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.codec.debezium import PLACEMENT
from penstock.errors import PenstockError
from penstock.kafka import kafka_sink
from penstock.process.paths import is_file
from penstock.query.delivery import Delivery
from penstock.replicate.event_checks import KEY

OVERRIDE = "producer.override."
Problems = Iterator[tuple[str, str]]


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    return chain(_credentials(values), _format(values), _times(values, config), _tls(values), _producer(values, config))


def _credentials(values: Mapping[str, Any]) -> Problems:
    if values["scylla.password"] is not None and values["scylla.user"] is None:
        yield "scylla.user", "Username is not set while password was set."
    if values["scylla.user"] is not None and values["scylla.password"] is None:
        yield "scylla.password", "Password is not set while username was set."


def _format(values: Mapping[str, Any]) -> Problems:
    if values["cdc.output.format"] != "legacy":
        if values["experimental.preimages.enabled"]:
            yield (
                "experimental.preimages.enabled",
                "it works only with the legacy format. Next: omit it, and set cdc.include.before=full",
            )
        return
    for side in ("before", "after"):
        if values[f"cdc.include.{side}"] != "none":
            yield (
                f"cdc.include.{side}",
                f"it must be none with the legacy format, not {values[f'cdc.include.{side}']}. Next: set "
                "cdc.output.format=advanced, or for preimages experimental.preimages.enabled=true",
            )
    if set(values["cdc.include.primary-key.placement"]) != set(PLACEMENT):
        yield (
            "cdc.include.primary-key.placement",
            f"it must be {','.join(PLACEMENT)} with the legacy format. Next: omit it, or set "
            "cdc.output.format=advanced",
        )


def _times(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    if not values["penstock.write.times"]:
        return
    if values["cdc.output.format"] != "extended":
        yield "penstock.write.times", "only extended events have times. Next: set cdc.output.format=extended"
    name = "cdc.include.primary-key.payload-key-name"
    if name in config and values[name] != KEY:
        yield name, f"with penstock.write.times it is {KEY}, where a replication looks for it. Next: omit it"


def _tls(values: Mapping[str, Any]) -> Problems:
    for name in ("truststore.path", "keystore.path", "openssl.keyCertChain", "openssl.privateKey"):
        path = values[f"scylla.ssl.{name}"]
        if path and not is_file(path):
            yield f"scylla.ssl.{name}", f"there is no file {path} on the worker's machine"
    chain, key = (values[f"scylla.ssl.openssl.{name}"] for name in ("keyCertChain", "privateKey"))
    if key and not chain:
        yield "scylla.ssl.openssl.keyCertChain", "scylla.ssl.openssl.privateKey requires its certificate here"


def _producer(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    delivery: Delivery = "exactly-once" if values["exactly.once.support"] == "required" else "at-least-once"
    for name, text in config.items():
        if name.startswith(OVERRIDE):
            try:
                kafka_sink.sink(
                    servers="localhost:9092", options={name.removeprefix(OVERRIDE): text}, delivery=delivery
                )
            except PenstockError as error:
                yield name, str(error)
