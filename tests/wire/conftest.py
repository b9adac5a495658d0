"""Three brokers that the tests may kill, started at first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from kafka_cluster import KafkaCluster, kafka_cluster

RACKS = """\
broker.rack=rack-{number}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
"""


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("cluster"), properties=RACKS) as made:
        yield made


@pytest.fixture
def cluster(running_cluster: KafkaCluster) -> KafkaCluster:
    """All three brokers, whatever the previous test did to them."""
    running_cluster.start_all()
    return running_cluster


@pytest.fixture
def admin(cluster: KafkaCluster) -> AdminClient:
    # It survives the brokers' deaths, and logs them on standard error unless disabled.
    return AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})
