"""As much of Kubernetes' API as Spark asks for its pods, which run as processes of this machine.

A pod that is created runs `deploy/docker/entrypoint` with the environment and the arguments of its container, as it
would in the image, once there are the ConfigMaps that it mounts. Names of services are names of this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from json_server import JsonAnswers, serving

from penstock.local import ports
from penstock_demo import child

ENTRYPOINT = Path(__file__).parents[3] / "deploy/docker/entrypoint"


SERVICE = re.compile(r"[\w-]+-driver-svc\.default\.svc")
"""The name of a service of a driver."""


class Kubernetes:
    """The objects that Spark has made, and the processes of its pods."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self.objects: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        self.pods: dict[str, subprocess.Popen[bytes]] = {}
        self._pending: list[dict[str, Any]] = []
        self.url = ""

    def create(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            about = given["metadata"] | {"uid": str(uuid.uuid4()), "resourceVersion": str(len(self.made) + 1)}
            made = given | {"metadata": about | {"creationTimestamp": "2026-01-31T12:00:00Z"}}
            self.made.append(made)
            name = about["name"]
            self.objects[f"{path}/{name}"] = made
            if path.endswith("/pods"):
                made["status"] = {"phase": "Pending", "podIP": ports.HOST}
                self._pending.append(made)
            for pod in [one for one in self._pending if self._mounts(one) is not None]:
                self._pending.remove(pod)
                pod["status"]["phase"] = "Running"
                self.pods[pod["metadata"]["name"]] = self._start(pod)
            return made

    def list(self, path: str, selector: str) -> list[dict[str, Any]]:
        with self._lock:
            for name, process in self.pods.items():
                if process.poll() is not None and (pod := self.objects.get(f"{path}/{name}")):
                    pod["status"]["phase"] = "Failed" if process.returncode else "Succeeded"
            below = [each for key, each in self.objects.items() if key.startswith(f"{path}/")]
        wanted = [part.split("=") for part in selector.split(",") if "=" in part and "!" not in part]
        return [one for one in below if all(one["metadata"]["labels"].get(key) == value for key, value in wanted)]

    def delete(self, path: str) -> None:
        with self._lock:
            self.objects.pop(path, None)
            process = self.pods.get(path.rpartition("/")[2])
        if process:
            child.kill(process)

    def stop(self) -> None:
        for process in self.pods.values():
            child.kill(process)

    def _mounts(self, pod: dict[str, Any]) -> dict[str, dict[str, str]] | None:
        """The files of the ConfigMaps of a pod by where they are mounted; None if one of them is missing."""
        named = {one["name"]: one["configMap"]["name"] for one in pod["spec"]["volumes"] if "configMap" in one}
        (container,) = pod["spec"]["containers"]
        found = {}
        for mount in container["volumeMounts"]:
            if of := named.get(mount["name"]):
                made = [one for path, one in self.objects.items() if path.endswith(f"/configmaps/{of}")]
                if not made:
                    return None
                found[mount["mountPath"]] = made[0]["data"]
        return found

    def _start(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        given = {one["name"]: one.get("value", ports.HOST) for one in container["env"]}
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": ports.HOST}
        folder = self._folder / pod["metadata"]["name"]
        folder.mkdir()
        words = [str(word) for word in container["args"]]
        for number, (path, files) in enumerate((self._mounts(pod) or {}).items()):
            place = folder / f"mount{number}"
            place.mkdir()
            for name, text in files.items():
                (place / name).write_text(SERVICE.sub(ports.HOST, text))
            words = [word.replace(path, str(place)) for word in words]
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(
                [str(ENTRYPOINT), *words],
                cwd=folder,
                env=own | given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    """An API server on this machine; `url` is for `--master`."""
    world = Kubernetes(folder)

    class Handler(JsonAnswers):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place = urlsplit(self.path)
            if "watch" in place.query:
                self.answered(_status("Failure", 404), 404)
            elif found := world.objects.get(place.path):
                self.answered(found)
            elif place.path.rpartition("/")[2] in ("pods", "configmaps", "services", "persistentvolumeclaims"):
                selector = parse_qs(place.query).get("labelSelector", [""])[0]
                about = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
                self.answered(about | {"items": world.list(place.path, selector)})
            else:
                self.answered(_status("Failure", 404), 404)

        def do_POST(self) -> None:
            self.answered(world.create(urlsplit(self.path).path, self._body()), 201)

        def do_PATCH(self) -> None:
            self.answered(world.create(urlsplit(self.path).path.rpartition("/")[0], self._body()))

        do_PUT = do_PATCH

        def do_DELETE(self) -> None:
            self._body()
            place = urlsplit(self.path)
            if place.path.endswith("/pods"):
                for pod in world.list(place.path, parse_qs(place.query).get("labelSelector", [""])[0]):
                    world.delete(f"{place.path}/{pod['metadata']['name']}")
            else:
                world.delete(place.path)
            self.answered(_status("Success", 200))

        def _body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

    with serving(Handler) as address:
        world.url = f"k8s://http://{address}"
        try:
            yield world
        finally:
            world.stop()


def _status(status: str, code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": status, "code": code}
