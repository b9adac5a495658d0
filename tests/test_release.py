"""Releases: the form of the files in changes/, what `make release` refuses, and that it builds the same bytes again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[1]
LONGEST = 150
"""Lines of a release that somebody reads."""
PLUGIN = "penstock/local/penstock-cassandra.jar"


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with all that a release writes, and one change."""
    folder = tmp_path / "checkout"
    for name in ("pyproject.toml", "scripts/changelog.md.jinja", "src/penstock/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    module = folder / "src/penstock/__init__.py"
    module.write_text(release.VERSION.sub('__version__ = "0.1.0.dev0"', module.read_text()))
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n")
    add(folder, "changes/streams/sessions.added.md", "Windows of sessions.\n")
    git(folder, "init", "--quiet")
    committed(folder)
    for name, value in (("USER_NAME", "A"), ("USER_EMAIL", "a@example.org")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name[5:]}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name[5:]}", value)
    return folder


def add(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def committed(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")


def test_the_changes_have_their_form() -> None:
    assert release.misformed(ROOT) == [], "CONTRIBUTING.md says how to write a change"


def test_the_next_release_is_a_page_that_somebody_reads() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert page.count("\n- ") == len(release.fragments(ROOT))
    assert page.count("\n") <= LONGEST, "make one file of changes that speak of the same thing"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("sessions.added.md", "Sessions.", "is not in a folder of a subject: changes-out, replication"),
        ("rivers/sessions.added.md", "Sessions.", "is not in a folder of a subject"),
        ("streams/sessions.new.md", "Sessions.", "with a kind of breaking, added, changed, fixed, faster"),
        ("streams/Sessions.added.md", "Sessions.", "is not <words-of-it>.<kind>.md"),
        ("streams/sessions.added.md", "Sessions", "one line that ends with a full stop"),
        ("streams/sessions.added.md", "Sessions.\nWindows.", "one line that ends with a full stop"),
        ("streams/sessions.added.md", "Sessions. " * 31 + ".", "more than 300 characters"),
        ("streams/sessions.breaking.md", "Sessions are gone.", "does not say `Replacement: ...`"),
    ],
)
def test_a_change_of_another_form_is_refused(checkout: Path, name: str, text: str, fault: str) -> None:
    shutil.rmtree(checkout / "changes")
    add(checkout, f"changes/{name}", text)
    (said,) = release.misformed(checkout)
    assert fault in said and said.startswith(f"changes/{name}: ")
    committed(checkout)
    with pytest.raises(release.Refused, match=r"CONTRIBUTING\.md has their form"):
        release.release(checkout, "0.1.0a1")
    assert git(checkout, "status", "--porcelain") == ""


def test_a_release_moves_the_changes_into_the_changelog(checkout: Path) -> None:
    add(checkout, "changes/kafka-client/no-lz4.breaking.md", "No lz4. Replacement: zstd.\n")
    add(checkout, "changes/changes-out/pages.faster.md", "Pages are read twice as fast.\n")
    committed(checkout)
    release.prepare(checkout, "0.1.0a1")
    page = (checkout / "CHANGELOG.md").read_text()
    order = [
        "## 0.1.0a1 (",
        "### Breaking",
        "- No lz4.",
        "### Changes out",
        "- Faster: Pages",
        "### Streams",
        "- Windows",
    ]
    assert sorted(order, key=page.index) == order and page.count("\n### ") == 3
    assert release.is_prepared(checkout, "0.1.0a1") and release.current(checkout) == "0.1.0a1"
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "log", "-1", "--format=%s").strip() == "Release 0.1.0a1"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("first", "'first' is not a version of PEP 440. Next: give one such as 0.1.0a1"),
        ("0.1.0-alpha.1", "0.1.0-alpha.1 is not the normal form of a release. Next: write 0.1.0a1"),
        ("0.1.0a1+mine", "Next: write 0.1.0a1"),
        ("0.2.0.dev3", "Next: write 0.2.0"),
        ("0.0.9", "0.0.9 is not newer than 0.2.0"),
        ("0.2.0", "0.2.0 is not newer than 0.2.0"),
        ("0.2.0rc1", "0.2.0rc1 is not newer than 0.2.0"),
    ],
)
def test_a_version_that_is_wrong_or_not_newer_is_refused(checkout: Path, version: str, said: str) -> None:
    git(checkout, "tag", "v0.2.0")
    git(checkout, "tag", "vision")
    with pytest.raises(release.Refused) as refused:
        release.release(checkout, version)
    assert said in str(refused.value)


def test_a_release_that_is_tagged_is_not_made_again_of_other_commits(checkout: Path) -> None:
    release.prepare(checkout, "0.1.0a1")
    git(checkout, "tag", "v0.1.0a1")
    assert release.released_version(checkout, "0.1.0a1") == "0.1.0a1"
    committed(checkout)
    with pytest.raises(release.Refused, match=r"0\.1\.0a1 is not newer than 0\.1\.0a1"):
        release.release(checkout, "0.1.0a1")


def test_a_tree_with_changes_is_refused(checkout: Path) -> None:
    add(checkout, "src/penstock/new.py", "")
    with pytest.raises(release.Refused, match=r"the tree has changes:\n\?\? src/penstock/new.py\nNext: commit them"):
        release.release(checkout, "0.1.0a1")


def test_a_release_without_a_change_is_refused(checkout: Path) -> None:
    release.prepare(checkout, "0.1.0a1")
    with pytest.raises(release.Refused, match=r"nothing of 0.1.0a2, and changes/ is empty. Next: write what changed"):
        release.release(checkout, "0.1.0a2")


def test_a_missing_changelog_is_refused(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").unlink()
    committed(checkout)
    with pytest.raises(release.Refused, match=r"CHANGELOG\.md is missing"):
        release.release(checkout, "0.1.0a1")


def test_bytes_that_differ_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        add(tmp_path, f"{name}/penstock.whl", name)
    ours, theirs = ([tmp_path / name / "penstock.whl"] for name in ("one", "other"))
    with pytest.raises(release.Refused, match=r"a second build gives another penstock.whl. Next: diffoscope"):
        release.require_same(ours, theirs, "a second build")
    release.require_same(ours, ours, "a second build")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clone of this checkout's commit, with files of a release."""
    folder = tmp_path_factory.mktemp("release") / "clone"
    git(ROOT, "clone", "--quiet", ".", str(folder))
    with pytest.MonkeyPatch.context() as patch:
        for who in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{who}_NAME", "A")
            patch.setenv(f"GIT_{who}_EMAIL", "a@example.org")
        add(folder, "changes/streams/one-more-change.added.md", "One more change, so that there is one.\n")
        git(folder, "add", "changes")
        git(folder, "commit", "--quiet", "--message", "a change")
        release.release(folder, "9999.0")
    yield folder


@pytest.mark.slow
def test_a_commit_gives_the_same_bytes_again(released: Path) -> None:
    sums = (released / "dist/SHA256SUMS").read_text()
    head = git(released, "rev-parse", "HEAD")
    release.release(released, "9999.0")
    assert (released / "dist/SHA256SUMS").read_text() == sums
    assert git(released, "rev-parse", "HEAD") == head and sums.count("\n") == 2


@pytest.mark.slow
def test_a_release_has_the_plugin_and_the_page_of_the_console(released: Path) -> None:
    page = "penstock/console/page/static/index.html"
    (wheel,) = (released / "dist").glob("*.whl")
    (archive,) = (released / "dist").glob("*.tar.gz")
    assert {PLUGIN, page} <= {*zipfile.ZipFile(wheel).namelist()}
    with tarfile.open(archive) as packed:
        assert {f"penstock-9999.0/src/{name}" for name in (PLUGIN, page)} <= {*packed.getnames()}


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_needs_no_jars(released: Path, tmp_path: Path) -> None:
    """Its plugin is that of the release, which nothing compiles again."""
    (archive,) = (released / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    nothing = {"PENSTOCK_CACHE": str(tmp_path / "cache"), "PENSTOCK_OFFLINE": str(tmp_path)}
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    moment = git(released, "log", "-1", "--format=%ct").strip()
    release.run(tmp_path / "penstock-9999.0", *command, SOURCE_DATE_EPOCH=moment, **nothing)
    (ours,) = (released / "dist").glob("*.whl")
    assert (tmp_path / "penstock-9999.0/dist" / ours.name).read_bytes() == ours.read_bytes()


def test_pythons_of_the_classifiers_are_those_that_may_install_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert project["requires-python"] == f">={named[0]}"
