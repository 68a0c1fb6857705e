"""Versions of packages and of the driver, for the provenance of what is measured."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from importlib import metadata

VERSIONS = ("torch", "transformers", "triton", "deepspeed", "liger-kernel", "bitsandbytes", "flash-attn", "numpy")


def driver_version() -> str:
    """The NVIDIA driver's version, or "unknown"."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        return "unknown"


def package_versions(names: tuple[str, ...] = VERSIONS) -> dict[str, str]:
    """The versions of those of the packages that are installed."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
