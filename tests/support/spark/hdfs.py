"""HDFS on this machine: a name node and a data node in one process, from Hadoop's own jars."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from waiting import until

from penstock.local import jars, java, ports
from penstock.local.jars import Artifact

SPARK = Path(pyspark.__file__).parent
JARS = [
    Artifact(
        "org/apache/hadoop/hadoop-client-minicluster/3.5.0/hadoop-client-minicluster-3.5.0.jar",
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
        56006450,
    ),
    # The cluster's class of Hadoop's own tests asserts with it.
    Artifact(
        "org/junit/jupiter/junit-jupiter-api/5.13.4/junit-jupiter-api-5.13.4.jar",
        "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
        240237,
    ),
]
"""What Spark's jars lack."""
OF_SPARK = "hadoop-client-*", "*slf4j*", "log4j*", "commons-*"
MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """A new file system with its files below `folder`; yields its URI."""
    jars.fetch_all([one for one in JARS if not one.cached])
    of_spark = [jar for name in OF_SPARK for jar in SPARK.glob(f"jars/{name}.jar")]
    path = ":".join(map(str, [*(one.file for one in JARS), *of_spark]))
    port, details = ports.free(set()), folder / "details"
    options = ["-Xmx256m", "-XX:+UseSerialGC", f"-Dtest.build.data={folder}/data", "-cp", path]
    words = ["-nomr", "-format", "-nnport", str(port), "-writeDetails", str(details)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [str(java.find().bin), *options, MAIN, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        ) as process,
    ):
        try:
            # It writes them when the data node has registered.
            until(lambda: details.exists() or process.poll() is not None, "HDFS")
            assert process.poll() is None, (folder / "log").read_text()
            yield f"hdfs://{ports.HOST}:{port}"
        finally:
            process.kill()
