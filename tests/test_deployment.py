"""The files of deploy/ are valid for the programs that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = DEPLOY / "systemd/penstock@.service"
KUBERNETES = "1.37"
"""The version of its API."""
OF_KUBERNETES = ("pipeline", "executors")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit of one pipeline, for this installation."""
    made = tmp_path / "penstock@orders.service"
    made.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", f"{Path(sys.executable).parent}/penstock"))
    return made


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this system has no systemd")
def test_systemd_takes_the_unit(unit: Path) -> None:
    def said() -> str:
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert said() == ""
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=none of these"))
    assert "KillMode" in said() or "kill mode" in said()


def kustomized(name: str) -> list[dict[str, Any]]:
    """The manifests of a folder of deploy/kubernetes, as `kubectl apply -k` sends them."""
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / name)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return [*yaml.safe_load_all(made.stdout)]


def container(name: str) -> dict[str, Any]:
    (found,) = [one for one in kustomized(name) if one["kind"] == "StatefulSet"]
    (only,) = found["spec"]["template"]["spec"]["containers"]
    return dict(only)


needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not on this machine")


@needs_kubectl
@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_kubernetes_takes_the_manifests(name: str) -> None:
    manifests = kustomized(name)
    assert {"StatefulSet", "Service", "ConfigMap"} <= {one["kind"] for one in manifests}
    for one in manifests:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    manifests[-1]["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(manifests[-1], KUBERNETES, strict=True)


@needs_kubectl
def test_executors_have_the_image_of_their_driver() -> None:
    found = container("executors")
    assert {"name": "IMAGE", "value": found["image"]} in found["env"]
    given = {one["name"] for one in found["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(found["args"]))) <= given


def commands() -> Iterator[tuple[str, list[str]]]:
    """The commands of penstock that the files start, by file."""
    (line,) = re.findall(r"^ExecStart=/opt/penstock/bin/penstock (.*)$", UNIT.read_text(), re.MULTILINE)
    yield "systemd", line.split()
    yield "compose", compose()["services"]["orders"]["command"]
    yield "apache", operator("apache")["spec"]["driverArgs"]
    yield "kubeflow", operator("kubeflow")["spec"]["arguments"]
    if shutil.which("kubectl"):
        yield from ((name, container(name)["args"]) for name in OF_KUBERNETES)


def operator(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / f"kubernetes/operators/{name}.yaml").read_text()))


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text()))


def test_all_run_a_command_that_exists() -> None:
    described = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for name, (command, *rest) in commands():
        options = [word.partition("=")[0] for word in rest if word.startswith("--")]
        assert command == "run" and options, name
        assert all(f"{option} " in described for option in options), name


def test_the_services_of_compose_have_their_files_and_each_other() -> None:
    services = compose()["services"]
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", service["image"]), name
        assert set(service.get("depends_on", {})) <= set(services)
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            assert source in compose()["volumes"] or (DEPLOY / "compose" / source).exists(), mount
    (target,) = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    # A server accepts its machine's name.
    assert target["targets"] == [f"{services['orders']['hostname']}:9400"]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each with its arguments on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "docker/Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def test_the_image_is_small_in_rights_and_in_lines() -> None:
    found = instructions()
    known = {"ARG", "FROM", "ENV", "RUN", "COPY", "LABEL", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} <= known and len((DEPLOY / "docker/Dockerfile").read_text().splitlines()) <= 40
    assert [rest for word, rest in found if word == "USER"] == ["185"]
    assert all("latest" not in rest for word, rest in found if word == "FROM")
    copied = [rest.split()[-2] for word, rest in found if word == "COPY" and "--from" not in rest]
    assert all((DEPLOY.parent / one).exists() for one in copied if not one.startswith("dist/"))
    extras = re.findall(r"whl\)\[([\w,]+)\]", " ".join(rest for _, rest in found))
    known_extras = re.findall(r"^(\w[\w-]*) = \[", (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras[0].split(",")) <= set(known_extras)


def test_the_entry_point_runs_commands(tmp_path: Path) -> None:
    subprocess.run(["sh", "-n", str(DEPLOY / "docker/entrypoint")], check=True)
    own = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    ran = subprocess.run(
        [str(DEPLOY / "docker/entrypoint"), "run", "--help"], env=own, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("usage: penstock run ")
