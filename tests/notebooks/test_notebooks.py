"""The notebooks run from beginning to end in a kernel of their own, and are stored light."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 120_000
SHORTER = {"MINUTES = 1.0": "MINUTES = 0.1"}  # of training, which shows the same

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def texts(notebook: Any) -> str:
    """All that its cells print."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


def test_there_are_those_that_the_page_names() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\w+\.ipynb)\)", page) == [
        "solar_cells.ipynb",
        "your_own_folder.ipynb",
        "paper_model.ipynb",
    ]
    assert {path.name for path in NOTEBOOKS} == set(re.findall(r"\w+\.ipynb", page))


@each_notebook
def test_it_is_stored_with_its_results_and_without_traces_of_a_machine(path: Path) -> None:
    notebook, content = read(path), path.read_text(encoding="utf-8")
    nbformat.validate(notebook)
    assert len(content) < MOST_BYTES
    assert texts(notebook)
    assert not re.search(r"/(home|Users|root|tmp|work)/", content)
    assert set(json.loads(content)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.slow
@each_notebook
def test_it_runs_from_beginning_to_end(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            cell.source = cell.source.replace(long, short)
    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert texts(notebook)
