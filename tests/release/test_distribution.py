"""The released files: the package and nothing else, with one version."""

import ast
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import discopatch
from tests.deploy.dockerfile import ROOT

PACKAGE = ROOT / "src" / "discopatch"
LARGEST = 20_000_000  # bytes of a wheel
POSIX_ALONE = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt", "nis"}


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def package_files() -> set[str]:
    """All files of the package, by their path below src/."""
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in found}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, as `make dist` leaves it."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        ["make", "dist", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2, "of twine check"
    return folder


def test_all_files_have_one_version() -> None:
    assert "version" in project()["dynamic"]
    newest = re.search(
        r"^## (\S+) - (unreleased|\d{4}-\d{2}-\d{2})$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest is not None
    assert newest[1] == discopatch.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == discopatch.__version__
    assert ("date-released" in citation) == (newest[2] != "unreleased")


def test_every_dependency_has_a_lower_bound() -> None:
    """So that a resolution of the oldest is one that could work."""
    extras = project()["optional-dependencies"]
    wanted = [*project()["dependencies"], *(each for extra in extras.values() for each in extra)]
    for requirement in map(Requirement, wanted):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert requirement.name == "discopatch" or operators & {">=", "=="}, requirement


def imported_at_once(tree: ast.Module) -> set[str]:
    """The packages that importing the module imports, without those in its functions."""
    found, waiting = set(), list[ast.AST](tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


def test_no_module_imports_what_only_some_systems_have() -> None:
    found = {path: imported_at_once(ast.parse(path.read_text())) & POSIX_ALONE for path in PACKAGE.rglob("*.py")}
    assert {path.name: each for path, each in found.items() if each} == {}


@pytest.mark.nightly
def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    (path,) = dist.glob("*.whl")
    assert path.name == f"discopatch-{discopatch.__version__}-py3-none-any.whl"
    assert path.stat().st_size < LARGEST
    about = f"discopatch-{discopatch.__version__}.dist-info/"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        metadata = BytesParser().parsebytes(wheel.read(f"{about}METADATA"))
    assert {name for name in names if not name.startswith(about)} == package_files()
    assert {f"{about}licenses/LICENSE", f"{about}licenses/NOTICE"} < names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or ()) == set(project()["optional-dependencies"])


@pytest.mark.nightly
def test_the_sdist_holds_what_a_build_needs(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    assert path.stat().st_size < LARGEST
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    beside = {name for name in names if not name.startswith("src/")}
    expected = {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff"}
    assert beside - {".gitignore", "PKG-INFO"} == expected
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == package_files()
