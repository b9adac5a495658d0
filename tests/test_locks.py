"""The lock files: they match pyproject.toml and name no host; NOTICE and the list of advisories have all packages."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = [ROOT / "requirements/build.txt", ROOT / "requirements/dev.txt"]
JARS = sorted((ROOT / "src/penstock/local/locks").glob("*.lock"))
LINE = re.compile(r"^([\w.-]+)==([\w.+!-]+)( ; .+)? \\$", re.MULTILINE)


def locked() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for file in LOCKS:
        for name, version, _ in LINE.findall(file.read_text()):
            found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def jars() -> list[tuple[str, str]]:
    """`group:artifact` and version."""
    paths = [line.split()[0].split("/") for file in JARS for line in file.read_text().splitlines() if line[0] != "#"]
    return [(f"{'.'.join(group)}:{name}", version) for *group, name, version, _ in paths]


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)
def test_every_package_has_checksums_and_no_host(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if line]
    assert "://" not in file.read_text()
    assert all(LINE.match(line) or re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines)
    assert lines[0].endswith(" \\") and "--hash" in lines[-1]


def test_what_is_locked_is_what_pyproject_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for some in project["optional-dependencies"].values() for text in some)]
    wanted = [one for text in texts if (one := Requirement(text)).name != "penstock"]
    have = locked()
    for one in wanted:
        versions = have.get(canonicalize_name(one.name), set())
        assert versions and all(version in one.specifier for version in versions), f"{one}: run scripts/lock_python.py"


def test_what_users_install_has_upper_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: some for name, some in project["optional-dependencies"].items() if name != "dev"}
    for text in [*project["dependencies"], *(text for some in extras.values() for text in some)]:
        one = Requirement(text)
        bounded = any(each.operator in ("<", "==") for each in one.specifier)
        assert bounded or one.name == "penstock", f"{text} has no upper bound"


def test_notice_names_all_that_is_locked() -> None:
    listed = set(re.findall(r"^  (\S+) (\S+): ", (ROOT / "NOTICE").read_text(), re.MULTILINE))
    vendored = json.loads((ROOT / "src/penstock/console/page/static/vendor/vendor.json").read_text())
    wanted = {(name, version) for name, versions in locked().items() for version in versions} | set(jars())
    wanted |= {(library["name"], library["version"]) for library in vendored}
    assert {(canonicalize_name(name) if ":" not in name else name, version) for name, version in listed} == wanted, (
        "run scripts/licences.py"
    )


def advisory(number: str, ecosystem: str, name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    """An advisory in OSV's format."""
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": [*events]}],
    }
    return {"id": number, "aliases": [f"CVE-{number}"], "summary": "it breaks", "affected": [affected], **more}


@pytest.mark.parametrize(
    ("ecosystem", "version", "events", "affected"),
    [
        ("Maven", "1.5.18", [{"introduced": "0"}, {"fixed": "1.5.19"}], True),
        ("Maven", "1.5.19", [{"introduced": "0"}, {"fixed": "1.5.19"}], False),
        ("Maven", "1.5.9", [{"introduced": "1.5.10"}, {"fixed": "1.5.19"}], False),
        ("Maven", "2.0", [{"introduced": "2.0.0"}], True),
        ("Maven", "2.0-rc1", [{"introduced": "2.0"}], False),
        ("Maven", "4.1.130.Final", [{"introduced": "4.1.0"}, {"fixed": "4.1.130"}], False),
        ("Maven", "32.0.1-jre", [{"introduced": "0"}, {"last_affected": "32.0.1"}], False),
        ("Maven", "1.4", [{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.3"}, {"fixed": "1.5"}], True),
        ("Maven", "1.2", [{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.3"}, {"fixed": "1.5"}], False),
        ("PyPI", "1.10", [{"introduced": "1.9"}, {"fixed": "1.11"}], True),
        ("PyPI", "2.0", [{"introduced": "0"}, {"last_affected": "2.0"}], True),
        ("PyPI", "2.0.1", [{"introduced": "0"}, {"last_affected": "2.0"}], False),
        ("PyPI", "2.0rc1", [{"introduced": "2.0"}], False),
    ],
)  # fmt: skip
def test_versions_lie_in_the_ranges_of_advisories(
    ecosystem: str, version: str, events: list[dict[str, str]], affected: bool
) -> None:
    script = runpy.run_path(str(ROOT / "scripts/advisories.py"))
    ranges = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    assert script["is_affected"](ecosystem, version, ranges) is affected
    assert script["is_affected"](ecosystem, version, {"versions": [version]})


def test_what_is_locked_and_has_an_advisory_is_listed(tmp_path: Path) -> None:
    logback = next(version for name, version in jars() if name == "ch.qos.logback:logback-core")
    (uvicorn,) = locked()["uvicorn"]
    everything = {"introduced": "0"}
    (tmp_path / "one.json").write_text(
        json.dumps(advisory("M-1", "Maven", "ch.qos.logback:logback-core", everything, {"fixed": "99"}))
    )
    with zipfile.ZipFile(tmp_path / "PyPI.zip", "w") as archive:
        for number, name, more in (("P-1", "Uvicorn", {}), ("P-2", "uvicorn", {"withdrawn": "2026"}), ("P-3", "x", {})):
            archive.writestr(f"{number}.json", json.dumps(advisory(number, "PyPI", name, everything, **more)))
    fixed = advisory("M-2", "Maven", "ch.qos.logback:logback-core", everything, {"fixed": "1.5.25"})
    (tmp_path / "list.json").write_text(json.dumps([fixed]))
    command = [sys.executable, str(ROOT / "scripts/advisories.py")]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[:2] == [
        f"ch.qos.logback:logback-core {logback}: M-1 (CVE-M-1), fixed in 99: it breaks",
        f"uvicorn {uvicorn}: P-1 (CVE-P-1), fixed in no version: it breaks",
    ]
    assert done.stdout.splitlines()[2].endswith("5 advisories, 2 findings")
    (tmp_path / "one.json").unlink()
    (tmp_path / "PyPI.zip").unlink()
    assert subprocess.run([*command, str(tmp_path)], capture_output=True, check=False).returncode == 0


def installer() -> Any:
    """scripts/install.py as a module."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts/install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path) -> Path:
    """A wheel of a package with nothing in it."""
    file = folder / "nothing_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as written:
        about = "nothing_here-1.0.dist-info"
        written.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing-here\nVersion: 1.0\n")
        written.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        written.writestr(f"{about}/RECORD", "")
    return file


@pytest.mark.parametrize("installer_of", ["PIP", "UV"])
def test_a_file_with_another_checksum_ends_the_installation(
    installer_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = installer()
    (tmp_path / "dev.txt").write_text(f"nothing-here @ {wheel(tmp_path).as_uri()} --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    step = (*getattr(install, installer_of), "--no-index", *install.HASHED, "dev.txt")
    monkeypatch.setattr(install, "STEPS", (step,))
    assert install.main() == 1
    said = capsys.readouterr().err
    assert any(wrong in said for wrong in install.WRONG_HASHES) and "without checksums" not in said


@pytest.mark.parametrize("failing", ["python", "machine", "wheel"])
def test_what_the_locks_do_not_serve_is_chosen_within_bounds_with_a_message(
    failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install, asked = installer(), []

    def pip(*options: str) -> str:
        asked.append(options)
        return "ERROR: No matching distribution found for x" if "--require-hashes" in options else ""

    monkeypatch.setattr(install, "install", pip)
    if failing == "python":
        monkeypatch.setattr(install, "PYTHONS", ((3, 9),))
    if failing == "machine":
        monkeypatch.setattr(install, "MACHINES", set())
    assert install.main() == 0
    assert asked[-1] == (*install.PIP, "--editable", ".[dev]")
    assert len(asked) == (2 if failing == "wheel" else 1)
    reasons = {"python": "they are for Python 3.9", "machine": "they are not for", "wheel": "No matching distrib"}
    said = capsys.readouterr().err
    assert reasons[failing] in said and "without checksums" in said


@pytest.mark.parametrize("failure", ["", "error: Failed to prune cache\n"])
def test_an_installation_leaves_no_builds_of_before_in_uvs_cache(
    failure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install, asked = installer(), []

    def uv(*command: str) -> str:
        asked.append(command)
        return failure if command == install.PRUNE else ""

    monkeypatch.setattr(install, "install", uv)
    assert install.main() == 0
    assert asked == [*install.STEPS, install.PRUNE]
    assert failure.strip() in capsys.readouterr().err
