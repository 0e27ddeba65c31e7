"""Versions of packages, and which extras are there, as the metadata of the installed package name them."""

import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import discopatch

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "discopatch"

# What each extra of pyproject.toml is for.
GIVES = {
    "bench": "plots and tables of `discopatch bench`",
    "client": "`discopatch.Client`, predictions by a service",
    "demo": "`discopatch demo`, and sample photos",
    "dev": "what contributors need: tests, ruff and mypy",
    "docs": "the site of the documentation, `make docs`",
    "export": "`discopatch export` to ONNX, compared with the detector",
    "gpu": "JPEG files decoded on a GPU, with CUDA 13",
    "gpu-cu12": "JPEG files decoded on a GPU, with CUDA 12",
    "heif": ".heic and .avif images",
    "hub": "detectors from and to the Hugging Face hub, hf://owner/name",
    "lance": "images in Lance tables",
    "openvino": "exports for OpenVINO",
    "parquet": "`score --out`, Parquet tables, and object stores such as s3://",
    "ray": "`score --engine ray`, on many machines",
    "runtime": "exports at work with onnxruntime, without torch",
    "serve": "`discopatch serve`, detectors over HTTP",
    "sklearn": "`discopatch.sklearn`, with scikit-learn's methods and signs",
    "solar": "the solar cells of `discopatch bench --suite solar`",
    "tensorboard": "training curves in TensorBoard",
    "test": "what the tests need",
    "transformers": "networks of transformers as encoders, such as dinov2=FOLDER",
    "wandb": "training runs in Weights & Biases",
}


def probe_versions() -> dict[str, Any]:
    """Of Python, the platform, and packages: those that are always needed, None where missing, and others if there."""
    found: dict[str, Any] = {
        "discopatch": discopatch.__version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "virtual_environment": sys.prefix != sys.base_prefix,
    }
    needed = {each.name: version_of(each.name) for each in requirements_of("")}
    extras = sorted({each.name for extra in extra_names() for each in requirements_of(extra)}, key=str.lower)
    optional = {name: version for name in extras if name not in needed and (version := version_of(name)) is not None}
    return {**found, "packages": {**needed, **optional}}


def probe_extras() -> dict[str, Any]:
    """Of each extra whether all of its packages are there, what it gives, what is missing, and how to install it."""
    found = {}
    for extra in sorted(extra_names()):
        missing = [text for each in requirements_of(extra) if (text := lacking(each))]
        found[extra] = {
            "installed": not missing,
            "gives": GIVES.get(extra, ""),
            "missing": missing,
            "install": f"pip install '{PACKAGE}[{extra}]'",
        }
    return found


def extra_names() -> list[str]:
    return metadata.metadata(PACKAGE).get_all("Provides-Extra") or []


def requirements_of(extra: str) -> "list[Requirement]":
    """What an extra adds on this platform, or for "" what is always needed."""
    from packaging.requirements import Requirement

    return [each for each in map(Requirement, metadata.requires(PACKAGE) or []) if belongs(each, extra)]


def belongs(requirement: "Requirement", extra: str) -> bool:
    """Whether the extra, or for "" the package itself, needs it on this platform."""
    marker = requirement.marker
    if marker is None:
        return extra == ""
    return marker.evaluate({"extra": extra}) and (extra == "" or not marker.evaluate({"extra": ""}))


def lacking(requirement: "Requirement") -> str | None:
    """None where the package is there in a version that will do, else what is wanted."""
    version, wanted = version_of(requirement.name), f"{requirement.name}{requirement.specifier}"
    if version is None:
        return wanted
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{wanted} (there is {version})"
    return None


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
