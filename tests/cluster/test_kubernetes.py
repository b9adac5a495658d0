"""`penstock run` on Kubernetes: what its API is asked for, and the right results with the image's entry point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kubernetes_validate
import pytest
from fake_kubernetes import ENTRYPOINT, Kubernetes, kubernetes
from number_files import add, pipeline, written
from waiting import patience, until

from penstock.local import java, ports
from penstock_demo import child

pytestmark = [pytest.mark.kill, pytest.mark.slow]

FILE = pipeline('frame.mapInArrow(lambda batches: batches, "id long")')
VERSION = "1.37"
"""Of Kubernetes' API."""
STARTER = ENTRYPOINT.with_name("submitted.py")
SETTINGS = {
    "spark.kubernetes.container.image": "penstock:test",
    # The API of the test has no watches.
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.apiPollingInterval": "1s",
}


@contextmanager
def running(world: Kubernetes, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "shop.py").write_text(FILE)
    settings = SETTINGS | {"spark.driver.host": ports.HOST, "spark.driver.bindAddress": ports.HOST}
    words = ["--master", world.url, "--executors", "1", "--executor-memory", "700m"]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    own = {"FOLDER": str(folder), "PYSPARK_PYTHON": sys.executable, "KUBECONFIG": "/no/configuration"}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "run", "shop.py:numbers", *words],
            cwd=folder,
            env=os.environ | own,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_spark_submits_a_pipeline_in_cluster_mode(tmp_path: Path) -> None:
    add(tmp_path, 3, 7)
    (tmp_path / "shop.py").write_text(FILE)
    (tmp_path / "token").write_text("a token")
    with kubernetes(tmp_path) as world:
        settings = SETTINGS | {
            "spark.kubernetes.driver.master": world.url.removeprefix("k8s://"),
            "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": str(tmp_path / "token"),
            "spark.kubernetes.authenticate.submission.oauthToken": "a token",
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.driverEnv.FOLDER": str(tmp_path),
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            "spark.executor.memory": "700m",
        }
        words = ["--master", world.url, "--deploy-mode", "cluster", "--name", "numbers"]
        words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        words += [f"local://{STARTER}", "run", f"{tmp_path}/shop.py:numbers", "--once"]
        words += ["--checkpoints", str(tmp_path / "kept")]
        programs = Path(sys.executable).parent
        submit = [str(programs / "spark-submit"), *words]
        own = {"KUBECONFIG": "/no/configuration", "JAVA_HOME": str(java.find().home)}
        own["PATH"] = f"{programs}:{os.environ['PATH']}"
        subprocess.run(submit, env=os.environ | own, check=True, timeout=patience(120))
        driver = next(name for name in world.pods if name.endswith("-driver"))
        said = (tmp_path / driver / "log").read_text
        until(lambda: world.pods[driver].poll() is not None, "end of the driver", patience(180))
        assert world.pods[driver].returncode == 0, said()
        assert len(world.pods) == 2, said()
    assert written(tmp_path) == [3, 7]
    for one in world.made:
        kubernetes_validate.validate(one, VERSION, strict=True)


def test_a_driver_asks_for_executors_and_for_another_one_when_one_dies(tmp_path: Path) -> None:
    add(tmp_path, 3, 7)
    with kubernetes(tmp_path) as world, running(world, tmp_path) as driver:

        def wait(*ids: int) -> None:
            def there() -> bool:
                assert driver.poll() is None, (tmp_path / "said").read_text()
                return written(tmp_path) == [*ids]

            until(there, "rows", patience(180))

        wait(3, 7)
        (first,) = world.pods.values()
        child.kill(first)
        add(tmp_path, 11)
        wait(3, 7, 11)
        assert len(world.pods) == 2
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(patience(60)) == 0, (tmp_path / "said").read_text()
        # The driver removes what it asked for.
        assert not [path for path in world.objects if "/pods/" in path]
    assert {one["kind"] for one in world.made} >= {"Pod", "ConfigMap"}
    for one in world.made:
        kubernetes_validate.validate(one, VERSION, strict=True)
