"""One Apache Cassandra node with the change log plugin, on the loopback address.

Writes are acknowledged after they are in the commit log's file, so a killed process loses none of them; they are not
forced to the disk, which only matters when the machine itself loses power.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from penstock.local import jars, plugin
from penstock.local.java import Java
from penstock.local.ports import HOST
from penstock.local.service import Service, ServiceFolder, ask, java_command, on_java

HANDLER = "dev.penstock.cassandra.CdcQueryHandler"

# What Cassandra's own jvm17-server.options opens.
EXPORTS = [
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
]
OPENS = [
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "jdk.management/com.sun.management.internal",
]

PROPERTIES = {
    "java.security.manager": "allow",  # Java 18 and later refuse it otherwise
    "jdk.attach.allowAttachSelf": "true",
    "cassandra.custom_query_handler_class": HANDLER,
    # One node: nobody to wait for, and one copy of the tables that usually have three.
    "cassandra.system_distributed.default_rf": "1",
    "cassandra.ring_delay_ms": "0",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.shutdown_announce_in_ms": "0",
    "cassandra.test.messagingService.nonGracefulShutdown": "true",
    # Else it fills a table of 100 000 rows at each start to measure what a row costs.
    "cassandra.memtable.row_overhead_size": "180",
    "cassandra.size_recorder_interval": "0",
    "cassandra.skip_sync": "true",
}

LOGGING = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %msg \\(%logger{0}\\)%n%ex</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
  <logger name="org.apache.cassandra.service.CassandraDaemon" level="INFO"/>
  <logger name="org.apache.cassandra.service.StorageService" level="INFO"/>
  <logger name="dev.penstock" level="INFO"/>
</configuration>
"""

THREADS_PER_CORE = 8

OPTIONS_REQUEST = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0])  # CQL protocol version 4: what do you support?
SUPPORTED = 6


def _configuration(place: ServiceFolder) -> str:
    """cassandra.yaml, written as JSON, which is YAML too."""
    seeds = {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider"}
    internode = place.ports["storage"]
    threads = THREADS_PER_CORE * (os.cpu_count() or 2)
    settings = {
        "cluster_name": "penstock",
        "num_tokens": 16,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [seeds | {"parameters": [{"seeds": f"{HOST}:{internode}"}]}],
        "auto_bootstrap": False,
        "listen_address": HOST,
        "rpc_address": HOST,
        "native_transport_port": place.ports["client"],
        "storage_port": internode,
        "ssl_storage_port": internode + 1,  # nothing opens it, but the two must differ
        "data_file_directories": [str(place.data / "data")],
        "commitlog_directory": str(place.data / "commitlog"),
        "hints_directory": str(place.data / "hints"),
        "saved_caches_directory": str(place.data / "caches"),
        "cdc_raw_directory": str(place.data / "cdc_raw"),
        # Writers wait for the file, woken together; syncing for each of them takes the node's CPU up by a half.
        "commitlog_sync": "group",
        "commitlog_sync_group_window": "2ms",
        # Hand-overs between many threads on few cores are a third of a write's CPU.
        "native_transport_max_threads": threads,
        "concurrent_writes": threads,
        "commitlog_total_space": "512MiB",
        "auto_snapshot": False,
        "materialized_views_enabled": True,
        # Tries take fewer objects and less CPU than the default skip lists.
        "memtable": {"configurations": {"trie": {"class_name": "TrieMemtable"}, "default": {"inherits": "trie"}}},
    }
    return json.dumps(settings, indent=1)


def _command(java: Java, classpath: list[Path], place: ServiceFolder) -> list[str]:
    configuration = place.write("cassandra.yaml", _configuration(place))
    logging = place.write("logback.xml", LOGGING)
    triggers = place.folder / "conf/triggers"
    triggers.mkdir(exist_ok=True)
    properties = PROPERTIES | {
        "cassandra.config": configuration.absolute().as_uri(),
        "cassandra.storagedir": str(place.data),
        "cassandra.triggers_dir": str(triggers),
        "logback.configurationFile": str(logging),
    }
    return [
        *java_command(java, "640m", place),
        *(f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTS),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENS),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        os.pathsep.join(map(str, classpath)),
        "org.apache.cassandra.service.CassandraDaemon",
    ]


def _ready(place: ServiceFolder) -> bool:
    header = ask(place.ports["client"], OPTIONS_REQUEST, 5)
    return len(header) == 5 and header[4] == SUPPORTED


def _jars(say: Callable[[str], None]) -> list[Path]:
    # The plugin replaces the query handler, so it stands in front of Cassandra's own jars.
    return [plugin.jar(say), *jars.fetch("cassandra", say)]


SERVICE = Service("cassandra", ("client", "storage"), "--cql-port", on_java(_jars, _command), _ready)
