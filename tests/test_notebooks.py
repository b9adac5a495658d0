"""The notebooks of examples run as in Jupyter: in a kernel of their own, whose main thread has a running event loop."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from waiting import patience

from penstock.local.services import Services

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PATIENCE = patience(300)
"""Seconds for a cell: the first one starts Spark."""


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel without the settings of this machine's user."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    found = nbformat.read(notebook, as_version=4)
    nbformat.validate(found)
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)


@pytest.mark.usefixtures("own_settings")
def test_the_counts_of_clicks(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA", services.kafka)
    notebook = nbformat.read(ROOT / "examples/06_windows.ipynb", as_version=4)
    notebook.cells.insert(-1, nbformat.v4.new_code_cell("print(latest.sum().sum(), len(latest), spark.streams.active)"))
    client = NotebookClient(notebook, timeout=int(PATIENCE), resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "400 12 []" in [output.text.strip() for output in outputs if output.get("name") == "stdout"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(
        "Traceback|WARN|ERROR", "".join(output.text for output in outputs if output.get("name") == "stderr")
    )
