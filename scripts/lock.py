"""Writes the lock files of `penstock.local.jars` with Maven: `python scripts/lock.py [name ...]`.

Run it only to change a version. A lock file lists every jar of a class path, in class path order, as Maven resolves it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKS = Path(__file__).parents[1] / "src/penstock/local/locks"

# (coordinates, whether Maven adds their dependencies)
WANTED: dict[str, tuple[list[str], bool]] = {
    # Without a binding for SLF4J the broker's log is lost.
    "kafka": (["org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"], True),
    # Kafka's command line tools; their dependencies are in "kafka".
    "kafka-tools": (["org.apache.kafka:kafka-tools:4.3.1"], False),
    # Cassandra's own logback 1.5.18 runs code from a configuration file (CVE-2025-11226, CVE-2026-1225).
    "cassandra": (
        [
            "org.apache.cassandra:cassandra-all:5.0.9",
            "ch.qos.logback:logback-core:1.5.32",
            "ch.qos.logback:logback-classic:1.5.32",
        ],
        True,
    ),
    # Spark's own jars have the connector's other dependencies. The token provider is 4.0.0 and spark-avro is 4.1.1
    # because later versions are missing from repositories; the token provider's classes are the same, and the connector
    # of Spark 4.2 runs on 4.3.
    "spark": (
        [
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
            "org.apache.spark:spark-avro_2.13:4.1.1",
        ],
        False,
    ),
    # The transforms of Kafka Connect and Debezium, which tests compare with ours; "kafka" has their other dependencies.
    "kafka-connect": (
        [
            *(f"org.apache.kafka:connect-{name}:4.3.1" for name in ("transforms", "api", "json")),
            "com.fasterxml.jackson.module:jackson-module-blackbird:2.21.2",
            *(f"io.debezium:debezium-{name}:3.2.4.Final" for name in ("core", "api", "common")),
        ],
        False,
    ),
    # The registry is one archive with all its jars.
    "registry": (["io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all"], False),
    # The driver of Spark's JDBC writer, the peer of `postgres.sink` in benchmarks.
    "postgres": (["org.postgresql:postgresql:42.7.7"], False),
    # A peer of benchmarks/streams.py.
    "kafka-streams": (["org.apache.kafka:kafka-streams:4.3.1"], True),
    "compiler": (["org.eclipse.jdt:ecj:3.45.0"], False),
}

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>lock</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}{}</dependency>"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def _dependency(coordinates: str, tail: str) -> str:
    """`coordinates` are `group:artifact:version`, and `:type:classifier` for other files than jars."""
    group, artifact, version, *rest = coordinates.split(":")
    kind = "<type>{}</type><classifier>{}</classifier>".format(*rest) if rest else ""
    return DEPENDENCY.format(group, artifact, version, kind, tail)


def class_path(coordinates: list[str], transitive: bool, repository: Path) -> list[Path]:
    """The paths of the class path's jars, below `repository`."""
    tail = "" if transitive else ALONE
    pom = POM.format("".join(_dependency(item, tail) for item in coordinates))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pom.xml").write_text(pom)
        goal = ["dependency:build-classpath", "-Dmdep.outputFile=classpath", "-Dmdep.includeScope=runtime"]
        subprocess.run(
            ["mvn", "-q", "-B", "-Dstyle.color=never", f"-Dmaven.repo.local={repository}", *goal],
            cwd=folder,
            check=True,
        )
        return [Path(jar) for jar in Path(folder, "classpath").read_text().split(os.pathsep)]


def main(names: list[str]) -> None:
    repository = Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2/repository"))
    for name in names or list(WANTED):
        coordinates, transitive = WANTED[name]
        lines = [f"# {' '.join(coordinates)}"]
        for jar in class_path(coordinates, transitive, repository):
            content = jar.read_bytes()
            lines.append(f"{jar.relative_to(repository)} {hashlib.sha256(content).hexdigest()} {len(content)}")
        (LOCKS / f"{name}.lock").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(lines) - 1} jars")


if __name__ == "__main__":
    main(sys.argv[1:])
