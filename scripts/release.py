"""Makes a release: `python scripts/release.py 0.1.0a1`, or `make release VERSION=0.1.0a1`.

1. Refuses a tree with changes, a version that is not PEP 440's or not newer, and a changelog that is missing.
2. Moves the files of changes/ into CHANGELOG.md, writes the version into the package, and commits both. A second run
   on that commit leaves both as they are.
3. Builds a source distribution and a wheel twice, from the commit's files alone, in folders and with modes that differ,
   and the wheel also from the source distribution. All must be the same bytes.
4. Leaves them in dist/, with their SHA-256.

It knows no remote repository and no package index: its last lines are the commands that publish the release.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from packaging.version import VERSION_PATTERN, InvalidVersion, Version

ROOT = Path(__file__).parents[1]
RELEASES = "<!-- releases -->\n"
SECTION = re.compile(r"^## (\S+)", re.MULTILINE)
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\.([a-z]+)\.md")
LONGEST = 300
"""Characters of a fragment: a change is a line or two of a page that somebody reads."""


class Refused(Exception):
    """Why there is no release, and what to do next."""


def release(root: Path, text: str) -> list[Path]:
    """The files of a release of this checkout."""
    if changed := git(root, "status", "--porcelain"):
        raise Refused(f"the tree has changes:\n{changed}\nNext: commit them, or put them away with git stash --all")
    version = released_version(root, text)
    if not is_prepared(root, version):
        prepare(root, version)
    return build(root, root / "dist")


def released_version(root: Path, text: str) -> str:
    """The version in PEP 440's normal form; refused if it is not, or if there is one that is as new."""
    try:
        version = Version(text)
    except InvalidVersion:
        raise Refused(f"{text!r} is not a version of PEP 440. Next: give one such as 0.1.0a1, 0.1.0 or 0.1.1") from None
    if str(version) != text or version.local or version.is_devrelease:
        normal = version.base_version + "".join(map(str, version.pre or ()))
        raise Refused(f"{text} is not the normal form of a release. Next: write {normal}")
    if not is_prepared(root, text) and (newest := max(known(root))) >= version:
        raise Refused(f"{text} is not newer than {newest}. Next: choose a later version; git tag lists the others")
    return text


def known(root: Path) -> list[Version]:
    """The versions that are or were: of the package, of CHANGELOG.md, and of tags."""
    tags = (tag.removeprefix("v") for tag in git(root, "tag", "--list", "v*").split())
    return [
        Version(text) for text in (current(root), *sections(root), *tags) if re.fullmatch(VERSION_PATTERN, text, re.X)
    ]


def is_prepared(root: Path, version: str) -> bool:
    """Whether this commit is that of the release: it has the version and its section, no further changes, and its tag
    is nowhere else."""
    elsewhere = set(git(root, "tag", "--list").split()) - set(git(root, "tag", "--points-at", "HEAD").split())
    written = current(root) == version and version in sections(root) and not fragments(root)
    return written and f"v{version}" not in elsewhere


def prepare(root: Path, version: str) -> None:
    """Commit the version and its section of CHANGELOG.md."""
    if not fragments(root):
        raise Refused(f"CHANGELOG.md has nothing of {version}, and changes/ is empty. Next: write what changed there")
    if faults := misformed(root):
        raise Refused("\n".join([*faults, "Next: correct these files; CONTRIBUTING.md has their form"]))
    if RELEASES not in changelog(root):
        raise Refused(f"CHANGELOG.md is missing or has no line {RELEASES.strip()}. Next: git log -- CHANGELOG.md")
    run(root, sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)
    module = root / "src/penstock/__init__.py"
    module.write_text(VERSION.sub(f'__version__ = "{version}"', module.read_text()))
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")


def misformed(root: Path) -> list[str]:
    """What is wrong with the files of changes/: one line for each fault."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["towncrier"]
    subjects = [one["path"] for one in settings["section"]]
    kinds = [one["directory"] for one in settings["type"]]
    return [
        f"{file.relative_to(root)}: {fault}"
        for file in fragments(root)
        for fault in faults_of(file, root / "changes", subjects, kinds)
    ]


def faults_of(file: Path, folder: Path, subjects: list[str], kinds: list[str]) -> list[str]:
    """What is wrong with one fragment."""
    name, text = NAME.fullmatch(file.name), file.read_text()
    subject = file.parent.relative_to(folder).as_posix()
    sentence = text.rstrip("\n")
    rules = {
        f"it is not in a folder of a subject: {', '.join(subjects)}": subject in subjects,
        f"its name is not <words-of-it>.<kind>.md, with a kind of {', '.join(kinds)}": bool(name and name[1] in kinds),
        "it is not one line that ends with a full stop": "\n" not in sentence and sentence.endswith((".", ".)")),
        f"it has more than {LONGEST} characters: say what changed, and let docs/ explain it": len(text) <= LONGEST + 1,
        "it is breaking and does not say `Replacement: ...`": ".breaking." not in file.name or "Replacement: " in text,
    }
    return [fault for fault, holds in rules.items() if not holds]


def fragments(root: Path) -> list[Path]:
    return sorted(file for file in (root / "changes").rglob("*") if file.is_file())


def changelog(root: Path) -> str:
    file = root / "CHANGELOG.md"
    return file.read_text() if file.exists() else ""


def sections(root: Path) -> list[str]:
    """The versions that CHANGELOG.md has."""
    return SECTION.findall(changelog(root).partition(RELEASES)[2])


def current(root: Path) -> str:
    """The version of the package."""
    (version,) = VERSION.findall((root / "src/penstock/__init__.py").read_text())
    return str(version)


def build(root: Path, out: Path) -> list[Path]:
    """The source distribution and the wheel of the last commit; refused if it does not decide each of their bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder, moment = Path(name), git(root, "log", "-1", "--format=%ct")
        first = built(exported(root, folder / "one", 0o022), moment, "sdist", "wheel")
        second = built(exported(root, folder / "other", 0o077), moment, "sdist", "wheel")
        with tarfile.open(first[0]) as archive:
            archive.extractall(folder, filter="data")
            unpacked = folder / archive.getnames()[0].partition("/")[0]
        require_same(first, second, "a second build")
        require_same(first[1:], built(unpacked, moment, "wheel"), "a build of the source distribution")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        files = [Path(shutil.copy(file, out)) for file in first]
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (out / "SHA256SUMS").write_text(sums)
    return files


def exported(root: Path, folder: Path, umask: int) -> Path:
    """The files of the last commit, with modes as they are on one machine or another."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive, umask=umask, check=True)
    return folder


def built(folder: Path, moment: str, *kinds: str) -> list[Path]:
    """What is built from a folder of sources, in the order of the kinds, with a time for all that is packed."""
    options = [word for kind in kinds for word in ("--target", kind)]
    run(folder, sys.executable, "-m", "hatchling", "build", *options, SOURCE_DATE_EPOCH=moment)
    ends = {"sdist": ".tar.gz", "wheel": ".whl"}
    return [next((folder / "dist").glob(f"*{ends[kind]}")) for kind in kinds]


def require_same(ours: list[Path], theirs: list[Path], what: str) -> None:
    """Refuse files that are not the same bytes."""
    for one, other in zip(ours, theirs, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise Refused(f"{what} gives another {one.name}. Next: diffoscope of both, from python -m hatchling build")


def git(root: Path, *words: str) -> str:
    return run(root, "git", *words).strip()


def run(folder: Path, *command: str, **variables: str) -> str:
    """What a program writes to standard output; refused with what it says if it fails."""
    ran = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Refused(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def main(words: list[str]) -> int:
    if len(words) != 1:
        print("which version? Next: make release VERSION=0.1.0a1", file=sys.stderr)
        return 2
    try:
        files = release(ROOT, words[0])
    except Refused as problem:
        print(f"No release: {problem}", file=sys.stderr)
        return 1
    print(*(f"dist/{file.name}" for file in files), "dist/SHA256SUMS", sep="\n")
    print(f"Next: git tag --annotate v{words[0]} --message 'Penstock {words[0]}', and publish the tag and dist/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
