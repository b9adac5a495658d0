"""Who overrules whom among the settings of a session: Penstock's are defaults."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.spark_runtime.settings import (
    MASTER,
    MOST_CORES,
    OVERHEAD,
    STATE_MEMORY,
    is_local,
    is_on_cluster,
    require_master,
    settings,
)

DRIVER, EXECUTOR = "spark.driver.memory", "spark.executor.memory"
CLUSTER = "spark://10.0.0.7:7077"


@pytest.fixture(autouse=True)
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of Spark's own defaults; nothing is set outside."""
    ours = ("PENSTOCK_SPARK_MASTER", "PENSTOCK_SPARK_CONF", "PENSTOCK_STATE_MEMORY")
    for name in (*ours, "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_alone_a_session_is_local() -> None:
    found = settings("shop", None, None, {})
    assert (found[MASTER], found[DRIVER], found["spark.driver.host"]) == ("local[2,4]", "1g", "127.0.0.1")
    assert settings("shop", 8, "4g", {})[MASTER] == "local[8,4]"
    assert settings("shop", 8, "4g", {})[DRIVER] == "4g"


def test_later_settings_overrule_earlier_ones(defaults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults.write_text(f"# ours\nspark.master   {CLUSTER}\nspark.executor.memory=2g\nspark.ui.enabled true\n")
    found = settings("shop", None, None, {})
    assert (found[MASTER], found[EXECUTOR], found["spark.ui.enabled"]) == (CLUSTER, "2g", "true")
    monkeypatch.setenv("PENSTOCK_SPARK_CONF", "spark.executor.memory=3g spark.app.name='two words'")
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "yarn")
    found = settings("shop", None, None, {})
    assert (found[MASTER], found[EXECUTOR], found["spark.app.name"]) == ("yarn", "3g", "two words")
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--master k8s://https://h:6443 --conf spark.executor.memory=4g pyspark-shell"
    )
    found = settings("shop", None, None, {})
    assert (found[MASTER], found[EXECUTOR]) == ("k8s://https://h:6443", "4g")
    found = settings("shop", None, None, {MASTER: CLUSTER, EXECUTOR: "5g"})
    assert (found[MASTER], found[EXECUTOR]) == (CLUSTER, "5g")


def test_java_options_and_jars_of_both_are_used(defaults: Path) -> None:
    defaults.write_text("spark.driver.extraJavaOptions -Dmine=1\nspark.jars /mine.jar\n")
    found = settings("shop", None, None, {})
    assert found["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert "log4j2.properties" in found["spark.driver.extraJavaOptions"]
    assert found["spark.jars"].endswith(",/mine.jar") and "spark-sql-kafka" in found["spark.jars"]


@pytest.mark.parametrize(
    ("given", "partitions"),
    [
        ({}, "8"),
        ({"spark.cores.max": "12"}, "12"),
        ({"spark.executor.instances": "3", "spark.executor.cores": "4"}, "12"),
        ({"spark.executor.instances": "3"}, "3"),
        ({"spark.executor.instances": "3", "spark.sql.shuffle.partitions": "64"}, "64"),
    ],
)
def test_a_cluster_has_a_partition_for_each_core(given: dict[str, str], partitions: str) -> None:
    found = settings("shop", None, None, {MASTER: CLUSTER} | given)
    assert found["spark.sql.shuffle.partitions"] == partitions
    assert "org.apache.avro.limits" in found["spark.executor.extraJavaOptions"]
    assert "spark.driver.host" not in found


def test_a_standalone_cluster_divides_cores_for_executors() -> None:
    found = settings(
        "shop", None, None, {MASTER: CLUSTER, "spark.executor.instances": "3", "spark.executor.cores": "2"}
    )
    assert (found["spark.cores.max"], found["spark.executor.cores"]) == ("6", "2")
    found = settings("shop", None, None, {MASTER: "yarn", "spark.executor.instances": "3"})
    assert not {"spark.cores.max", "spark.executor.cores"} & found.keys()
    with pytest.raises(PenstockError, match="'3x' is not a number of executors or cores"):
        settings("shop", None, None, {MASTER: CLUSTER, "spark.executor.instances": "3x"})


def test_cores_are_those_of_all_executors() -> None:
    found = settings("shop", 6, None, {MASTER: CLUSTER})
    assert (found[MASTER], found["spark.cores.max"], found["spark.sql.shuffle.partitions"]) == (CLUSTER, "6", "6")
    assert settings("shop", 6, None, {MASTER: CLUSTER, MOST_CORES: "4"})[MOST_CORES] == "4"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({MASTER: "yarn"}, "limits a standalone cluster only, and yarn gives executors .*leave --cores out"),
        ({MASTER: "k8s://https://10.0.0.1:6443"}, "only, and k8s://https://10.0.0.1:6443 gives .*--executor-cores N"),
        ({MASTER: CLUSTER, "spark.executor.instances": "3"}, "6 cores and 3 executors are two limits.*or --cores N"),
    ],
)
def test_a_number_of_cores_that_a_cluster_would_not_heed_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        settings("shop", 6, None, given)


def test_state_has_a_quarter_of_an_executor_and_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STATE_MEMORY not in settings("shop", None, None, {})
    assert settings("shop", None, None, {MASTER: CLUSTER})[STATE_MEMORY] == "262144k"
    assert settings("shop", None, None, {MASTER: CLUSTER, EXECUTOR: "4g"})[STATE_MEMORY] == "1048576k"
    assert OVERHEAD not in settings("shop", None, None, {MASTER: CLUSTER})
    for master in ("yarn", "k8s://https://10.0.0.1:6443"):
        assert settings("shop", None, None, {MASTER: master})[OVERHEAD] == f"{768 + 384 + 256}m"
        large = {MASTER: master, EXECUTOR: "4g", "spark.executor.cores": "3", STATE_MEMORY: "6g"}
        assert settings("shop", None, None, large)[OVERHEAD] == f"{768 + 3 * 384 + 6144}m"
        assert settings("shop", None, None, large | {OVERHEAD: "1g"})[OVERHEAD] == "1g"
        assert OVERHEAD not in settings("shop", None, None, large | {f"{OVERHEAD}Factor": "0.4"})
    monkeypatch.setenv("PENSTOCK_STATE_MEMORY", "3g")
    assert settings("shop", None, None, {MASTER: CLUSTER})[STATE_MEMORY] == "3g"
    with pytest.raises(PenstockError, match=r"'lots' is not an amount of memory .*STATE_MEMORY.*as in 700m or 4g"):
        settings("shop", None, None, {STATE_MEMORY: "lots"})


def test_a_master_of_the_environment_is_a_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_on_cluster({})
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", CLUSTER)
    assert is_on_cluster({}) and not is_on_cluster({MASTER: "local[4]"})


def test_a_master_on_this_machine_is_asked_on_the_loopback_address() -> None:
    for master in ("spark://127.0.0.1:7077", "local-cluster[1,1,1024]"):
        assert settings("shop", None, None, {MASTER: master})["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("text", ["executor.memory=4g", "spark.executor.memory"])
def test_what_is_no_setting_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPARK_CONF", text)
    with pytest.raises(PenstockError, match=r"is not a setting of Spark.*NAME=VALUE"):
        settings("shop", None, None, {})


@pytest.mark.parametrize("master", ["sprk://h:7077", "mesos://h:5050", "", "localhost", "spark://", "k8s://"])
def test_an_unknown_master_is_refused(master: str) -> None:
    with pytest.raises(PenstockError, match=r"is not a master of Spark. Next: use spark://HOST:7077"):
        require_master(master)


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(f"spark://127.0.0.1:{port}")
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    said = rf"no Spark master can be reached: 127.0.0.1:{port}: Connection refused; h: it has no port"
    with pytest.raises(PenstockError, match=said):
        require_master(f"spark://127.0.0.1:{port},h")


@pytest.mark.parametrize("variable", ["PENSTOCK_SPARK_CONF", "PYSPARK_SUBMIT_ARGS"])
def test_open_quotes_are_told(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "spark.app.name='two")
    with pytest.raises(PenstockError, match=f"{variable} cannot be read: No closing quotation"):
        settings("shop", None, None, {})


def test_a_damaged_file_of_defaults_is_told(defaults: Path) -> None:
    defaults.write_bytes(b"spark.app.name \xff\n")
    with pytest.raises(PenstockError, match=rf"Spark's settings cannot be read: .*{defaults}.*Next: fix the file"):
        settings("shop", None, None, {})


def test_local_masters() -> None:
    assert all(map(is_local, ("local", "local[2]", "local[*]", "local[2,4]")))
    assert not any(map(is_local, ("local-cluster[2,1,1024]", CLUSTER, "yarn", "k8s://https://h")))
