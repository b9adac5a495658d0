"""The Kafka clusters that the console reads, by their addresses: the given one, those of the runs, and the local one.

Each has a list of topics of its own. Addresses that have a server in common are one cluster, named by the first of
them, with the login of the given one or without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.console.reading.topic_list import Offsets, TopicList
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.wire.cluster import addresses

Servers = frozenset[tuple[str, int]]

MOST = 16
"""The most clusters; a console with more of them still shows these."""


class NoKafka(PenstockError):
    """The console does not know a Kafka, or not this one."""


class SeveralKafkas(PenstockError):
    """The console knows several Kafkas, and none of them was chosen."""


@dataclass
class _Cluster:
    brokers: Brokers
    servers: set[tuple[str, int]]
    topics: TopicList


class KafkaClusters:
    """`of_runs` gives the addresses of the Kafkas of the runs: others come when runs start, and go with them.

    Addresses of runs never get the login: a run file may name any server.
    """

    def __init__(self, configured: Brokers | None, local: str | None, of_runs: Callable[[], Iterable[str]]) -> None:
        self._configured, self._local, self._of_runs = configured, local, of_runs
        self._topics: dict[Brokers, TopicList] = {}

    def names(self) -> list[str]:
        """The addresses of all clusters: the given one first, the local one last, if nothing else was given or runs."""
        return [cluster.brokers.servers for cluster in self._known()]

    def default(self) -> str | None:
        """The cluster of who names none: the given one, or the only one."""
        names = self.names()
        return names[0] if names and (self._configured is not None or len(names) == 1) else None

    def name_of(self, address: str | None) -> str | None:
        """The cluster at an address; an unknown address is the only cluster's, and None if there are several."""
        names = self.names()
        if not address:
            return names[0] if len(names) == 1 else None
        servers = servers_of(address)
        return next((cluster.brokers.servers for cluster in self._known() if servers & cluster.servers), None)

    def topics(self, name: str | None = None) -> TopicList:
        """The topics of a cluster, by default of the given or only one; raises NoKafka or SeveralKafkas."""
        known = self._some()
        names = ", ".join(cluster.brokers.servers for cluster in known)
        wanted = name or self.default()
        if wanted is None:
            raise SeveralKafkas(f"{len(known)} Kafkas are known: {names}", next="choose one of them with kafka=")
        servers = servers_of(wanted)
        cluster = next((cluster for cluster in known if servers & cluster.servers), None)
        if cluster is None:
            raise NoKafka(f"the console does not read a Kafka at {wanted[:200]}", next=f"give kafka= one of {names}")
        return cluster.topics

    async def ends(self, topic: str) -> tuple[Offsets, Offsets]:
        """The first offsets and the ends of a topic of which only the name is known: one cluster must have it.

        Raises SeveralKafkas if several have a topic of this name.
        """
        from penstock.wire.errors import UnknownTopicOrPartition

        known, candidates = self._some(), []
        for cluster in known:
            try:
                candidates.append((cluster.brokers.servers, await cluster.topics.ends(topic)))
            except UnknownTopicOrPartition:
                if len(known) == 1:
                    raise
        if len(candidates) != 1:
            names = ", ".join(name for name, _ in candidates) or "none of them"
            step = "start the pipeline: a checkpoint does not say which Kafka it reads"
            raise SeveralKafkas(f"it is not known which Kafka has its topic {topic}: {names} could", next=step)
        return candidates[0][1]

    async def close(self) -> None:
        for topics in self._topics.values():
            await topics.close()

    def _some(self) -> list[_Cluster]:
        known = self._known()
        if not known:
            raise NoKafka("no Kafka is known", next="give --servers HOST:PORT, or start a pipeline that uses Kafka")
        return known

    def _known(self) -> list[_Cluster]:
        clusters: list[_Cluster] = []
        for brokers in self._brokers():
            servers = servers_of(brokers.servers)
            same = next((cluster for cluster in clusters if servers & cluster.servers), None)
            if same is not None:
                same.servers |= servers
            elif servers and len(clusters) < MOST:
                topics = self._topics.setdefault(brokers, TopicList(brokers))
                clusters.append(_Cluster(brokers, set(servers), topics))
        return clusters

    def _brokers(self) -> Iterator[Brokers]:
        if self._configured is not None:
            yield self._configured
        others = dict.fromkeys(self._of_runs())
        yield from map(Brokers, others)
        if self._configured is None and not others and self._local:
            yield Brokers(self._local)


def servers_of(address: str) -> Servers:
    """The hosts and ports of an address; none if it is not one of Kafka.

    All names of this machine's loopback are one.
    """
    try:
        places = addresses(address)
    except ValueError:
        return frozenset()
    loopback = ("localhost", "::1", "127.0.0.1")
    return frozenset(
        ("127.0.0.1" if place.host.lower() in loopback else place.host.lower(), place.port) for place in places
    )
