"""Cores, memory, GPUs, how torch was built, and what the cache holds."""

import os
import platform
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from discopatch.images import cache_root
from discopatch.utils import usable_memory

NO_TORCH = "torch is not installed: exports can be run here, detectors cannot be fitted"
CPU_MODEL = "model name"  # in Linux's /proc/cpuinfo


def probe_torch() -> dict[str, Any] | None:
    """How torch was built and what it uses; None where it is not installed."""
    torch = find_torch()
    if torch is None:
        return None
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def probe_devices() -> dict[str, Any]:
    """Cores, memory in bytes, GPUs, the device that `auto` takes, and whether the fast kernels are there."""
    torch = find_torch()
    gpus = [] if torch is None else list_gpus(torch)
    available, detail = kernels_available(gpus)
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": usable_memory(),
        "gpus": gpus,
        "auto": None if torch is None else "cuda" if gpus else "cpu",
        "fast_kernels": {"available": available, "detail": detail},
    }


def probe_cache() -> dict[str, Any]:
    """The cache folder, and how many files and bytes are in it; nothing outside it is followed."""
    folder = cache_root()
    files = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                size += os.lstat(Path(parent, name)).st_size
                files += 1
    return {"folder": str(folder), "exists": folder.is_dir(), "files": files, "bytes": size}


def find_torch() -> Any:
    """The module, or None where it is not installed; one that cannot be imported is an error."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return torch


def list_gpus(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        capability = f"{properties.major}.{properties.minor}"
        free, total = torch.cuda.mem_get_info(number)
        found.append({"name": properties.name, "memory": total, "free": free, "capability": capability})
    return found


def kernels_available(gpus: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether `precision='bfloat16'` would find what it needs, and why not."""
    if not gpus:
        return False, "they need a GPU"
    if find_spec("triton") is None:
        return False, "triton is not installed: install torch for CUDA, which brings it on Linux"
    return True, "precision='bfloat16' takes them"


def processor_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(CPU_MODEL):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
