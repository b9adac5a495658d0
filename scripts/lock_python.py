"""Writes the lock files of Python packages with uv: `python scripts/lock_python.py [--upgrade]`.

Run it only to change a version, after `pip install uv`. `requirements/dev.txt` lists all packages of `make setup` with
the SHA-256 of each of their files, `requirements/build.txt` the packages that build source distributions. They are for
Python 3.11 to 3.13 on Linux and macOS, x86_64 and arm64, and contain no host. Versions that pyproject.toml still allows
stay, unless `--upgrade` is given.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPTIONS = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-annotate", "--no-header", "--quiet")
LOCKS = {"build.txt": ("requirements/build.in",), "dev.txt": ("pyproject.toml", "--extra=dev")}


def main(options: list[str]) -> int:
    uv = shutil.which("uv")
    if uv is None:
        print("uv is not installed. Next: pip install uv", file=sys.stderr)
        return 1
    for name, source in LOCKS.items():
        file = f"requirements/{name}"
        # A user's own package index must not get into the file.
        command = [uv, "pip", "compile", *OPTIONS, "--no-emit-index-url", "--no-emit-find-links", *options, *source]
        subprocess.run([*command, f"--output-file={file}"], cwd=ROOT, check=True)
        lines = (ROOT / file).read_text().splitlines()
        print(f"{file}: {sum('==' in line for line in lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
