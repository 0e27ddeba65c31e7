"""Imports: torch is imported on first use, and every public name exists."""

import subprocess
import sys
from pathlib import Path

import pytest

import discopatch
from discopatch import errors


def imported(code: str) -> set[str]:
    """The packages that a new interpreter has imported after the code."""
    code = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.splitlines()}


def test_importing_the_package_does_not_import_torch() -> None:
    assert "torch" not in imported("import discopatch; discopatch.__version__")


def test_a_detector_does_not_import_what_only_training_needs() -> None:
    found = imported("from discopatch import Detector; Detector()")
    assert "torch" in found
    assert not {"lightning", "lightning_fabric", "torchmetrics", "sklearn"} & found


def test_help_lists_the_commands_and_does_not_import_torch() -> None:
    code = (
        "from discopatch.cli import main\n"
        "sys.argv = ['discopatch', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
    )
    assert "torch" not in imported(code)


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("discopatch")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{discopatch.__version__}\n"
    assert len([int(part) for part in discopatch.__version__.split(".")]) == 3


def test_every_public_name_exists() -> None:
    assert [name for name in discopatch.__all__ if getattr(discopatch, name) is None] == []
    with pytest.raises(AttributeError, match="Detektor"):
        discopatch.Detektor  # noqa: B018


def test_every_error_is_a_discopatch_error() -> None:
    found = {name: value for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert len(found) > 10
    for name, value in found.items():
        assert issubclass(value, (errors.DiscopatchError, Warning))
        assert name.endswith("Warning" if issubclass(value, Warning) else "Error")
