"""Kafka's own command line tools, in the version of the broker: tests compare Penstock's client with them."""

from __future__ import annotations

import os

from penstock.local import jars, java


def command(main: str, *arguments: str) -> list[str]:
    """The command line of a tool, a class in `org.apache.kafka.tools`, for example "ProducerPerformance"."""
    class_path = [*jars.fetch("kafka-tools"), *jars.fetch("kafka")]
    return [
        str(java.find().bin),
        "-cp",
        os.pathsep.join(map(str, class_path)),
        f"org.apache.kafka.tools.{main}",
        *arguments,
    ]
