"""The corpus of each decoder again, by loops that were compiled to check every index: a write behind an array is one.

Machine code has no such checks, and what it reads or writes beside an array is often not noticed. These loops are
compiled anew, into a folder of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .runner import corpus
from .watch import names, run


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the loops with checks are kept for the decoders that share them."""
    return tmp_path_factory.mktemp("checked")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if corpus(name)])
def test_no_index_is_out_of_bounds(name: str, compiled: Path, tmp_path: Path) -> None:
    report = run(name, 0, tmp_path, inputs=0, env={"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(compiled)})
    assert not report.findings, "\n\n".join(f"{one.file}: {one.wrong}" for one in report.findings)
    assert report.inputs == len(corpus(name))
