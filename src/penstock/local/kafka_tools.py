"""Kafka's own command line tools, in the version of the broker: the judge and the peer of our client."""

from __future__ import annotations

import os

from penstock.local import jars, java


def command(main: str, *arguments: str) -> list[str]:
    """The command line of a tool: its class in `org.apache.kafka.tools`, such as "ProducerPerformance"."""
    class_path = [*jars.fetch("kafka-tools"), *jars.fetch("kafka")]
    return [
        str(java.find().bin),
        "-cp",
        os.pathsep.join(map(str, class_path)),
        f"org.apache.kafka.tools.{main}",
        *arguments,
    ]
