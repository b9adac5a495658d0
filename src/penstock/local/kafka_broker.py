"""One Kafka broker that is its own controller (KRaft), on the loopback address; and Kafka's own tools."""

from __future__ import annotations

import base64
import os
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local import jars, java
from penstock.local.java import Java
from penstock.local.ports import HOST
from penstock.local.service import Service, ServiceFolder, ask, java_command, on_java

# A killed broker cannot return before its old session has ended, by default 9 seconds.
# By default the log cleaner's buffer alone is half of the heap.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{client},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{client}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
num.partitions=4
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=8388608
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c{1})%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
logger.server.name=kafka.server
logger.server.level=INFO
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=WARN
"""

# Kafka's ApiVersions request: length, request 18 in version 0, correlation id, no client id.
CORRELATION = b"pens"
API_VERSIONS = struct.pack(">ihh4sh", 10, 18, 0, CORRELATION, -1)


def _command(java: Java, classpath: list[Path], place: ServiceFolder) -> list[str]:
    properties = place.write("server.properties", PROPERTIES.format(host=HOST, data=place.data, **place.ports))
    logging = place.write("log4j2.properties", LOGGING)
    launch = [
        *java_command(java, "256m", place),
        # The second compiler does not speed up a broker of small batches, and costs memory and start time.
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        os.pathsep.join(map(str, classpath)),
    ]
    if not (place.data / "meta.properties").exists():
        _format(launch, properties, place)
    return [*launch, "kafka.Kafka", str(properties)]


def _format(launch: list[str], properties: Path, place: ServiceFolder) -> None:
    """Write a cluster id to an empty data folder; a broker refuses to start without it."""
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
    arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-g", "-c", str(properties)]
    answer = subprocess.run([*launch, *arguments], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise PenstockError(
            f"Kafka could not prepare its data folder: {(answer.stderr or answer.stdout).strip()}",
            where=str(place.data),
            next="make the folder writable, or delete the data with: penstock up --clean",
        )


def _ready(place: ServiceFolder) -> bool:
    # The port opens early, but the broker answers requests only after it has joined its own cluster.
    return ask(place.ports["client"], API_VERSIONS, 8)[4:] == CORRELATION


def _jars(say: Callable[[str], None]) -> list[Path]:
    return jars.fetch("kafka", say)


SERVICE = Service("kafka", ("client", "controller"), "--kafka-port", on_java(_jars, _command), _ready)


def tool(main: str, *arguments: str) -> list[str]:
    """The command line of a tool, a class in `org.apache.kafka.tools` of the broker's version.

    Tests and benchmarks compare Penstock's client with them, for example with "ProducerPerformance".
    """
    class_path = os.pathsep.join(map(str, [*jars.fetch("kafka-tools"), *jars.fetch("kafka")]))
    return [str(java.find().bin), "-cp", class_path, f"org.apache.kafka.tools.{main}", *arguments]
