"""`doctor`: what this machine can do, in one `Report`, and what the labs will therefore show on it."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata, util
from typing import Literal

from pydantic import BaseModel, NonNegativeInt

from labs_utils.device import CPU, Device, this_device, usable_cores
from labs_utils.rates import Measured, Rate, measured_rates
from labs_utils.timing import Spread

TRIAL_SECONDS = 60
FLASH_CAPABILITY = 8.0  # flash-attn's README: "Ampere, Ada, or Hopper GPUs"; bf16 and PyTorch's own flash too
VERSIONS = ("torch", "transformers", "triton", "deepspeed", "liger-kernel", "bitsandbytes", "flash-attn", "numpy")
INSTEAD = {
    "flash_attn": "PyTorch's own attention kernels live, and flash-attn as recorded",
    "liger_kernel": "the chunked loss that you write, the estimate, and Liger as recorded",
    "bitsandbytes": "int8 and NF4 written out in PyTorch, and bitsandbytes as recorded",
    "deepspeed": "estimates and recorded runs in its handout, while cells that launch DeepSpeed fail",
    "triton": "the same tiles in PyTorch, and the kernels as recorded",
}


class Package(BaseModel, frozen=True):
    """Whether a package works here (None: not tried), how or why not, and what the labs show where it doesn't."""

    name: str
    works: bool | None
    why: str
    instead: str

    @property
    def verdict(self) -> str:
        return {True: "works", False: "doesn't work", None: "not tried"}[self.works]


class Machine(BaseModel, frozen=True):
    """What can be read off without measuring. Without a usable GPU, `memory_bytes` is the host's."""

    device: str
    is_gpu: bool
    gpus: NonNegativeInt
    memory_bytes: NonNegativeInt | None
    compute_capability: float
    driver: str | None
    cores: NonNegativeInt | None
    host_memory_bytes: NonNegativeInt | None
    remark: str = ""


class Report(BaseModel, frozen=True, extra="forbid"):
    """A machine, its rates and its packages. Rates were measured on it, or are a vendor's peaks: `source`.

    `details` are what `labs doctor --full` measures besides, and `remarks` say what of that can't be measured there.
    """

    source: Literal["measured", "data sheet"]
    date: str
    machine: Machine
    versions: dict[str, str]
    rates: tuple[Rate, ...]
    packages: tuple[Package, ...]
    details: tuple[Measured, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The device, and that it is an example where it isn't this machine."""
        example = " (an example from data/gpus.csv, not this machine)"
        return self.machine.device + (example if self.source == "data sheet" else "")

    @property
    def has_bf16(self) -> bool:
        """Whether the device computes in bf16: GPUs from compute capability 8.0 on, and CPUs, if slowly."""
        return not self.machine.is_gpu or self.machine.compute_capability >= FLASH_CAPABILITY

    def rate(self, subject: str) -> Rate | None:
        """The rate with that name, or None."""
        return next((rate for rate in self.rates if rate.subject == subject), None)

    def package(self, name: str) -> Package:
        return next(package for package in self.packages if package.name == name)

    def benchmarks(self) -> list[dict]:
        """Lines of `data/measurements/benchmarks.jsonl`, one a rate; none from a data sheet, which measured nothing."""
        if self.source != "measured":
            return []
        command = f"labs doctor{' --full' if self.details else ''} --json"
        where = {"device": self.machine.device, "driver": self.machine.driver}
        provenance = {**self.versions, **where, "date": self.date, "command": command}
        return [measured.to_line(provenance) for measured in (*self.rates, *self.details)]


def data_sheet_report(device: Device) -> Report:
    """What the vendor says about a row of `data/gpus.csv`, as an example. Its packages have not been tried."""
    peaks = {
        "memory read and written": device.hbm_bytes_per_s,
        "copy host to device, pinned": device.host_bytes_per_s,
        **{f"matmul {name}": getattr(device, f"{name}_flop_per_s") for name in ("fp32", "fp16", "bf16")},
    }
    rates = tuple(
        Rate(
            subject=subject,
            per_second=Spread(median=peak, p20=peak, p80=peak),
            unit="FLOP/s" if "matmul" in subject else "bytes/s",
        )
        for subject, peak in peaks.items()
        if peak
    )
    machine = machine_with(device, gpus=1, driver=None, cores=None, host_memory_bytes=None)
    packages = tuple(why_not(name, machine) or package(name, None, "this is an example") for name in INSTEAD)
    return Report(source="data sheet", date="", machine=machine, versions={}, rates=rates, packages=packages)


def this_machine() -> Machine:
    """This machine as `nvidia-smi`, torch and the operating system see it."""
    import psutil
    import torch

    device, gpus = this_device(), torch.cuda.device_count()
    host_memory_bytes, remark = psutil.virtual_memory().total, ""
    if device.is_gpu and not gpus:
        remark = f"There is a GPU, {device.name}, but torch {torch.__version__} can't use it: the labs run on the CPU."
        device = CPU.model_copy(update={"memory_bytes": host_memory_bytes})
    driver = driver_version() if device.is_gpu else None
    return machine_with(
        device, gpus=gpus, driver=driver, cores=usable_cores(), host_memory_bytes=host_memory_bytes, remark=remark
    )


def machine_with(device: Device, **fields) -> Machine:
    known = {"memory_bytes": device.memory_bytes, "compute_capability": device.compute_capability}
    return Machine(device=device.name, is_gpu=device.is_gpu, **known, **fields)


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


def package(name: str, works: bool | None, why: str) -> Package:
    return Package(name=name, works=works, why=why, instead=INSTEAD[name])


def why_not(name: str, machine: Machine) -> Package | None:
    """A package that can't work on this device, with the reason; None if it may."""
    if name != "flash_attn" or machine.compute_capability >= FLASH_CAPABILITY:
        return None
    here = f"this one has {machine.compute_capability}" if machine.is_gpu else "there is none here"
    return package(name, False, f"it needs a GPU of compute capability {FLASH_CAPABILITY} or newer; {here}")


def tried(name: str, machine: Machine) -> Package:
    """Try a package in a process of its own, so that one that crashes or hangs takes nothing with it."""
    if impossible := why_not(name, machine):
        return impossible
    if util.find_spec(name) is None:
        return package(name, False, "it isn't installed")
    command = [sys.executable, "-m", "labs_utils.workers.trying", name]
    try:
        trial = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return package(name, False, f"it gave no answer in {TRIAL_SECONDS} seconds; on a busy machine, try again")
    if trial.returncode == 0:
        return package(name, True, trial.stdout)
    return package(name, False, last_words(trial))


def last_words(trial: subprocess.CompletedProcess) -> str:
    """Why a trial failed: the signal that ended it, or the last line of its traceback."""
    if trial.returncode < 0:
        return f"it ended the process that tried it (signal {-trial.returncode})"
    lines = trial.stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"its process ended with status {trial.returncode}"


def doctor(
    look: Callable[[], Machine] = this_machine,
    measure: Callable[[str, float], list[Rate]] = measured_rates,
    attempt: Callable[[str, Machine], Package] = tried,
    measure_in_full: Callable[[str, float, int], tuple[list[Measured], list[str]]] | None = None,
) -> Report:
    """Report on this machine, in about 15 seconds. Each of the three steps can be given in place of the real one.

    `measure_in_full`, if given (`labs_utils.step_rates.measured_in_full`), measures what `Report.details` holds.
    """
    machine = look()
    with ThreadPoolExecutor() as pool:
        packages = tuple(pool.map(lambda name: attempt(name, machine), INSTEAD))
    where = ("cuda" if machine.is_gpu else "cpu", machine.compute_capability)
    rates = measure(*where)  # once nothing else is running
    details, remarks = measure_in_full(*where, machine.gpus) if measure_in_full else ((), ())
    return Report(
        source="measured",
        date=datetime.date.today().isoformat(),
        machine=machine,
        versions={"python": platform.python_version(), **package_versions()},
        rates=tuple(rates),
        packages=packages,
        details=tuple(details),
        remarks=tuple(remarks),
    )
