"""A file is whole or not there."""

import json
from pathlib import Path

import pytest

from discopatch.files import write_atomically, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    write_atomically(path, lambda beside: beside.write_text("content"))
    assert path.read_text() == "content"
    assert names(path.parent) == ["file.txt"]


def test_old_content_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("a longer old content")
    write_atomically(path, lambda beside: beside.write_text("new"))
    assert path.read_text() == "new"


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_content_and_no_partial_file(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(beside: Path) -> None:
        beside.write_text("half of the ne")
        raise failure

    with pytest.raises(type(failure)):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_writer_that_fails_before_it_writes_leaves_nothing(tmp_path: Path) -> None:
    def write(beside: Path) -> None:
        raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        write_atomically(tmp_path / "file.txt", write)
    assert names(tmp_path) == []


def test_readers_never_see_a_half(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    seen = []

    def write(beside: Path) -> None:
        for part in ("new ", "content"):
            with beside.open("a") as file:
                file.write(part)
            seen.append(path.read_text())

    write_atomically(path, write)
    assert seen == ["old", "old"]
    assert path.read_text() == "new content"


def test_json_is_readable_again(tmp_path: Path) -> None:
    content = {"name": "Käse", "numbers": [1, 2.5, None]}
    write_json(tmp_path / "run.json", content)
    assert json.loads((tmp_path / "run.json").read_text()) == content


def test_what_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"step": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"step": object()})
    assert json.loads((tmp_path / "run.json").read_text()) == {"step": 1}
    assert names(tmp_path) == ["run.json"]
