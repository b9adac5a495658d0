"""Makes the lock files of Python packages again with uv: `python scripts/lock_python.py [--upgrade]`.

Only whoever raises a version runs this, after `pip install uv`. `requirements/dev.txt` names all packages of `make
setup` with the SHA-256 of each of their files, `requirements/build.txt` what builds those that come as source. They
hold for Python 3.11 to 3.13 on Linux and macOS, x86_64 and arm64, and name no host. Versions stay as they are where
the bounds of pyproject.toml still allow them, unless `--upgrade` is given.
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
        # An index of the user's own must not stand in a file for everybody.
        command = [uv, "pip", "compile", *OPTIONS, "--no-emit-index-url", "--no-emit-find-links", *options, *source]
        subprocess.run([*command, f"--output-file={file}"], cwd=ROOT, check=True)
        lines = (ROOT / file).read_text().splitlines()
        print(f"{file}: {sum('==' in line for line in lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
