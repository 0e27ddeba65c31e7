"""The notebooks, as they are stored and as they run."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_has_no_traces_of_a_machine(path: Path) -> None:
    content = path.read_text(encoding="utf-8")
    nbformat.validate(nbformat.reads(content, as_version=4))
    assert len(content) < 120_000
    assert not re.search(r"/(home|Users|root|tmp|work)/", content)


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_beginning_to_end(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("MINUTES = 1.0", "MINUTES = 0.1")  # a shorter training
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    assert any(output.get("text") for cell in notebook.cells for output in cell.get("outputs", ()))
