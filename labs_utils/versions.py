"""Versions of packages and of the driver, for the provenance of what is measured."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from labs_utils.nvml import ask_driver

VERSIONS = ("torch", "transformers", "triton", "deepspeed", "liger-kernel", "bitsandbytes", "flash-attn", "numpy")


def driver_version() -> str:
    """The NVIDIA driver's version, or "unknown"."""
    return ask_driver(lambda nvml: nvml.nvmlSystemGetDriverVersion()) or "unknown"


def package_versions(names: tuple[str, ...] = VERSIONS) -> dict[str, str]:
    """The versions of those of the packages that are installed, by name.

    >>> list(package_versions(("numpy", "no-such-package")))
    ['numpy']
    """
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
