"""One Apache Cassandra node with the change log plugin, on the loopback address.

Writes are acknowledged after they are in the commit log's file, so a killed process loses none. They are not synced to
the disk: a machine that loses power may lose them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local import jars
from penstock.local.java import Java
from penstock.local.ports import HOST
from penstock.local.service import Service, ServiceFolder, ask, java_command, on_java

JAR = Path(__file__).with_name("penstock-cassandra.jar")
"""The plugin's jar: in the wheel, or built in a checkout."""
SOURCES = Path(__file__).parents[3] / "cassandra"
HANDLER = "dev.penstock.cassandra.CdcQueryHandler"

# As in Cassandra's own jvm17-server.options.
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
    "java.security.manager": "allow",  # required since Java 18
    "jdk.attach.allowAttachSelf": "true",
    "cassandra.custom_query_handler_class": HANDLER,
    # One node: no other nodes to wait for, and one replica of tables that have three by default.
    "cassandra.system_distributed.default_rf": "1",
    "cassandra.ring_delay_ms": "0",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.shutdown_announce_in_ms": "0",
    "cassandra.test.messagingService.nonGracefulShutdown": "true",
    # By default each start fills a table of 100 000 rows to measure the overhead of a row.
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

OPTIONS_REQUEST = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0])  # OPTIONS of CQL's protocol version 4
SUPPORTED = 6


def _configuration(place: ServiceFolder) -> str:
    """cassandra.yaml, written as JSON, which is also YAML."""
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
        "ssl_storage_port": internode + 1,  # never opened, but must differ from storage_port
        "data_file_directories": [str(place.data / "data")],
        "commitlog_directory": str(place.data / "commitlog"),
        "hints_directory": str(place.data / "hints"),
        "saved_caches_directory": str(place.data / "caches"),
        "cdc_raw_directory": str(place.data / "cdc_raw"),
        # Writers wait for the file as a group; a sync for each writer raises the node's CPU by a half.
        "commitlog_sync": "group",
        "commitlog_sync_group_window": "2ms",
        # Handing over between many threads on few cores costs a third of a write's CPU.
        "native_transport_max_threads": threads,
        "concurrent_writes": threads,
        "commitlog_total_space": "512MiB",
        "auto_snapshot": False,
        "materialized_views_enabled": True,
        # Tries need fewer objects and less CPU than the default skip lists.
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


def _plugin(say: Callable[[str], None]) -> Path:
    """The jar that gives Cassandra the change log of ScyllaDB; in a checkout it is built again if sources changed.

    Raises PenstockError if the build fails or the jar is missing.
    """
    build = SOURCES / "build.py"
    if build.exists():
        if not JAR.exists():
            say("building the Cassandra plugin")
        answer = subprocess.run([sys.executable, str(build)], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise PenstockError(
                f"The Cassandra plugin does not build: {(answer.stderr or answer.stdout).strip()}",
                where=str(SOURCES),
                next=f"run: {sys.executable} {build}",
            )
    if not JAR.exists():
        raise PenstockError(
            "The Cassandra plugin is missing from this installation",
            where=str(JAR),
            next="install a wheel that has it; in a checkout run: make setup",
        )
    return JAR


def _jars(say: Callable[[str], None]) -> list[Path]:
    # The plugin replaces the query handler, so it comes before Cassandra's own jars.
    return [_plugin(say), *jars.fetch("cassandra", say)]


SERVICE = Service("cassandra", ("client", "storage"), "--cql-port", on_java(_jars, _command), _ready)
