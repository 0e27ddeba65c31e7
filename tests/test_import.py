"""The package is there at once: torch is imported when something needs it, not before."""

import subprocess
import sys
from pathlib import Path

import pytest

import discopatch
from discopatch import errors


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_does_not_import_torch() -> None:
    assert fresh("import sys, discopatch; discopatch.__version__; print('torch' in sys.modules)") == "False\n"


def test_a_detector_does_not_wait_for_what_only_training_needs() -> None:
    code = (
        "import sys; from discopatch import Detector; Detector(); print(*(each.split('.')[0] for each in sys.modules))"
    )
    assert not {"lightning", "lightning_fabric", "torchmetrics", "sklearn"} & set(fresh(code).split())


def test_help_lists_the_commands_and_does_not_import_torch() -> None:
    printed = fresh(
        "import sys\n"
        "from discopatch.cli import main\n"
        "sys.argv = ['discopatch', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    print('status', end.code)\n"
        "print('torch imported:', 'torch' in sys.modules)\n"
    )
    for command in ("train", "score", "demo"):
        assert f" {command} " in printed
    assert "status 0" in printed
    assert "torch imported: False" in printed


def test_the_command_is_installed_and_knows_its_version() -> None:
    command = Path(sys.executable).with_name("discopatch")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{discopatch.__version__}\n"


def test_the_version_is_three_numbers() -> None:
    assert len([int(part) for part in discopatch.__version__.split(".")]) == 3


@pytest.mark.parametrize("name", discopatch.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(discopatch, name) is not None


def test_every_error_is_a_discopatch_error_and_named_so() -> None:
    found = {name: value for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
    assert len(found) > 15
    for name, value in found.items():
        assert issubclass(value, (errors.DiscopatchError, Warning))
        assert name.endswith("Warning" if issubclass(value, Warning) else "Error")
        assert getattr(discopatch, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Detektor"):
        discopatch.Detektor  # noqa: B018
