"""A real Kafka cluster (KRaft) on the loopback address; each broker can be killed and started again.

Broker 1 is the controller too: three processes instead of four, and a quorum that outlives brokers 2 and 3.
"""

from __future__ import annotations

import base64
import os
import resource
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE

from penstock.local import jars, java, kafka_broker, ports, process
from penstock.local.process import Process
from penstock.local.service import ServiceFolder, java_command

# Leaders move only when a test moves them. A dead broker is noticed after `session`.
PROPERTIES = """\
process.roles={roles}
node.id={number}
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
log.dirs={data}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=300
auto.leader.rebalance.enable=false
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=8388608
offsets.topic.replication.factor={brokers}
offsets.topic.num.partitions=2
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

STOP_PATIENCE = 10.0
BEREAVED = 'read -r _; for pid in "$0"/*/pid; do [ -e "$pid" ] && kill -9 "$(cat "$pid")"; done'
"""Run with a pipe from the test: it ends even if the test was killed, so that no broker is left."""


class KafkaCluster:
    """Brokers 1 to `brokers`; made by `kafka_cluster`."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        listeners: Mapping[str, str],
        properties: str,
        java_options: Sequence[str],
        advertised: Callable[[str, int], int],
    ) -> None:
        self._java_options, self._advertised = java_options, advertised
        self._folder, self._protocols, self._extra = folder, {"PLAINTEXT": "PLAINTEXT"} | dict(listeners), properties
        self._places: dict[int, ServiceFolder] = {}
        self._processes: dict[int, Process] = {}
        taken: set[int] = set()
        for number in range(1, brokers + 1):
            names = [*self._protocols, "CONTROLLER"] if number == 1 else [*self._protocols]
            found: dict[str, int] = {}
            for name in names:
                found[name] = ports.free(taken)
                taken.add(found[name])
            self._places[number] = ServiceFolder(folder / f"broker-{number}", found | {"client": found["PLAINTEXT"]})

    @property
    def numbers(self) -> list[int]:
        return list(self._places)

    @property
    def servers(self) -> str:
        return ",".join(self.address(number) for number in self._places)

    def address(self, number: int, listener: str = "PLAINTEXT") -> str:
        return f"{ports.HOST}:{self._places[number].ports[listener]}"

    def start(self, *numbers: int) -> None:
        """Start brokers and return at once; `wait` for them."""
        for number in numbers:
            place = self._places[number]
            with process.uninterrupted():
                self._processes[number] = process.start(self._command(number, place), place.log, os.environ)
                (place.folder / "pid").write_text(str(self._processes[number].pid))

    def wait(self, *numbers: int) -> None:
        """Wait until these brokers serve."""
        deadline = time.monotonic() + PATIENCE
        for number in numbers:
            place = self._places[number]
            while not kafka_broker.SERVICE.ready(place):
                assert self._processes[number].alive(), f"broker {number} ended:\n{process.tail(place.log)}"
                assert time.monotonic() < deadline, f"broker {number} does not serve:\n{process.tail(place.log)}"
                time.sleep(process.POLL)

    def kill(self, *numbers: int) -> None:
        """kill -9, all at the same moment."""
        processes = [self._processes[number] for number in numbers]
        for one in processes:
            os.kill(one.pid, signal.SIGKILL)
        while any(one.alive() for one in processes):
            time.sleep(process.POLL)
        self._forget(numbers)

    def pid(self, number: int) -> int:
        """The process id of a running broker."""
        return self._processes[number].pid

    @property
    def alive(self) -> list[int]:
        return [number for number, one in self._processes.items() if one.alive()]

    def fill_disk(self, number: int, topic: str, room: int) -> None:
        """Make this broker's writes fail when a log of this topic has grown by `room` bytes, until it is started again.

        A limit on the size of files does that; the broker treats it like a full disk.
        """
        sizes = [log.stat().st_size for log in self._places[number].data.glob(f"{topic}-*/*.log")]
        _, hard = resource.prlimit(self._processes[number].pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._processes[number].pid, resource.RLIMIT_FSIZE, (max(sizes) + room, hard))

    def wait_for_end(self, number: int) -> None:
        """Wait until this broker has ended by itself."""
        deadline = time.monotonic() + PATIENCE
        while self._processes[number].alive():
            assert time.monotonic() < deadline, f"broker {number} goes on"
            time.sleep(process.POLL)
        self._forget((number,))

    def stop(self, *numbers: int) -> None:
        """Stop brokers in order: each hands its leaderships over first."""
        process.stop([self._processes[number] for number in numbers], STOP_PATIENCE)
        self._forget(numbers)

    def start_all(self) -> None:
        """Start the brokers that do not run, and wait until all serve."""
        self.start(*(number for number in self.numbers if number not in self._processes))
        self.wait(*self.numbers)

    def clear(self) -> None:
        """Stop all running brokers, gently or not."""
        process.stop(self._processes.values(), 0.0)
        self._forget(tuple(self._processes))

    def format(self) -> None:
        """Give each broker's folder the cluster's identity."""
        for place in self._places.values():
            place.data.mkdir(parents=True)
        cluster = _identity()
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._configured(1))]
        done = subprocess.run(
            [*self._launch(self._places[1]), *tool], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # Only the controller needs more files than this from the tool, which takes seconds each time.
        for number in self.numbers[1:]:
            identity = f"version=1\ncluster.id={cluster}\nnode.id={number}\ndirectory.id={_identity()}\n"
            (self._places[number].data / "meta.properties").write_text(identity)

    def _forget(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            del self._processes[number]
            (self._places[number].folder / "pid").unlink(missing_ok=True)

    def _command(self, number: int, place: ServiceFolder) -> list[str]:
        for port in place.ports.values():
            assert ports.becomes_free(port), f"port {port} of broker {number} was taken"
        return [*self._launch(place), "kafka.Kafka", str(self._configured(number))]

    def _launch(self, place: ServiceFolder) -> list[str]:
        logging = place.write("log4j2.properties", kafka_broker.LOGGING)
        options = [*self._java_options, f"-Dlog4j2.configurationFile={logging}"]
        classpath = os.pathsep.join(map(str, jars.fetch("kafka")))
        return [*java_command(java.find(), "160m", place), *options, "-cp", classpath]

    def _configured(self, number: int) -> Path:
        place = self._places[number]
        named = {name: f"{name}://{ports.HOST}:{port}" for name, port in place.ports.items() if name != "client"}
        protocols = self._protocols | {"CONTROLLER": "PLAINTEXT"}
        text = PROPERTIES.format(
            roles="broker,controller" if number == 1 else "broker",
            number=number,
            host=ports.HOST,
            controller=self._places[1].ports["CONTROLLER"],
            listeners=",".join(named.values()),
            advertised=",".join(
                f"{name}://{ports.HOST}:{self._advertised(name, place.ports[name])}" for name in self._protocols
            ),
            protocols=",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            data=place.data,
            brokers=len(self._places),
        )
        return place.write("server.properties", text + self._extra.replace("{number}", str(number)))


def _identity() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()


@contextmanager
def kafka_cluster(
    folder: Path,
    *,
    brokers: int = 3,
    listeners: Mapping[str, str] | None = None,
    properties: str = "",
    java_options: Sequence[str] = ("-XX:TieredStopAtLevel=1",),
    advertised: Callable[[str, int], int] = lambda listener, port: port,
) -> Iterator[KafkaCluster]:
    """A running cluster; all of its processes are gone afterwards.

    `listeners` are names with their security protocols, besides PLAINTEXT, which the brokers use among themselves;
    `properties` is added to each broker's configuration, with its number for "{number}", `java_options` to its command
    line. `advertised` is the port that clients of a listener get instead of its own, such as that of a proxy.
    """
    cluster = KafkaCluster(folder, brokers, listeners or {}, properties, java_options, advertised)
    cluster.format()
    with subprocess.Popen(["sh", "-c", BEREAVED, str(folder)], stdin=subprocess.PIPE, start_new_session=True):
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.clear()
