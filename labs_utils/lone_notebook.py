"""A notebook on its own, as on Colab: the course that it has fetched is installed beside the torch that is there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from labs_utils.nvml import ask_driver, first_gpu

COURSE = Path(__file__).resolve().parents[1]
FETCHED_INTO = "fetched-course"  # the folder beside a notebook into which its first cell unpacks the course


def set_up(lab: str) -> None:
    """Install the course and what a lab needs besides, if the notebook has fetched the course; keep its torch.

    `lab` is an extra of the package, such as "lab04". In a clone nothing is installed, nor is anything installed twice.
    Where there is no GPU, Triton is told to interpret its kernels: it asks that as it is imported, often by others.

    Raises:
        SystemExit: one sentence, if pip can't install that beside the torch that is there, or the kernel must restart.
    """
    interpret_kernels_without_gpu()
    if COURSE.parent != Path(FETCHED_INTO).resolve() or not missing(lab):
        return
    print(f"Installing what {lab} needs, once. It takes a minute or two, and torch stays as it is.")
    install(lab)
    importlib.invalidate_caches()
    if left := missing(lab):
        sys.exit(f"Installed, but this kernel doesn't see {', '.join(left)} yet: restart it and run this cell again.")


def interpret_kernels_without_gpu() -> None:
    """Set what Triton asks as it is imported, unless it is set."""
    if ask_driver(first_gpu) is None:
        os.environ.setdefault("TRITON_INTERPRET", "1")


def missing(lab: str) -> list[str]:
    """What isn't installed: the course, from this folder, or else what it and the lab need."""
    try:
        course = distribution("labs_utils")
    except PackageNotFoundError:
        return ["labs_utils"]
    source = json.loads(course.read_text("direct_url.json") or "{}")
    if source.get("url") != COURSE.as_uri():
        return ["labs_utils"]
    from packaging.requirements import Requirement  # installed with the course

    needs = [Requirement(line) for line in course.requires or ()]
    mine = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": lab})]
    found = {need: installed(need.name) for need in mine}
    return [need.name for need, has in found.items() if not has or not need.specifier.contains(has, prereleases=True)]


def install(lab: str) -> None:
    """Install the course from its folder, with the lab's extra; pip may not change torch.

    Raises:
        SystemExit: one sentence with pip's reason.
    """
    torch = installed("torch")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(f"torch=={torch}\n" if torch else "")
        command = [sys.executable, "-m", "pip", "install", "--constraint", str(constraints)]
        pip = subprocess.run([*command, "--editable", f"{COURSE}[{lab}]"], capture_output=True, text=True)
    if pip.returncode:
        beside = f" beside torch {torch}" if torch else ""
        sys.exit(f"pip can't install what {lab} needs{beside}: {reason(pip.stdout, pip.stderr)}")


def reason(output: str, errors: str) -> str:
    """Why pip failed, in its words: what is in conflict with what, or else its first error."""
    conflict = output.partition("The conflict is caused by:")[2].partition("To fix this")[0]
    return " ".join((conflict or errors.partition("ERROR: ")[2] or errors).split())[:600]


def installed(name: str) -> str:
    """The version of a package, or "" where it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
