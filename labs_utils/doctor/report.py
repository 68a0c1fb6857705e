"""`Report`: what a machine can do, measured or by its data sheet, and its packages."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, NonNegativeInt

from labs_utils.device import BF16_CAPABILITY, Device
from labs_utils.doctor.machine_rates import Measured, Rate
from labs_utils.profiling.timing import Spread
from labs_utils.time_model.subjects import TO_DEVICE, copy

FLASH_CAPABILITY = 8.0  # flash-attn's README: "Ampere, Ada, or Hopper GPUs"; PyTorch's own flash too
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
        """`works` in words."""
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
        """Whether the device computes in bf16; a CPU does, if slowly."""
        return not self.machine.is_gpu or self.machine.compute_capability >= BF16_CAPABILITY

    def rate(self, subject: str) -> Rate | None:
        """The rate with that name, or None."""
        return next((rate for rate in self.rates if rate.subject == subject), None)

    def package(self, name: str) -> Package:
        """The package with that name."""
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
        copy(TO_DEVICE): device.host_bytes_per_s,
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


def machine_with(device: Device, **fields) -> Machine:
    """A machine that has this device; `fields` are the others of `Machine`."""
    known = {"memory_bytes": device.memory_bytes, "compute_capability": device.compute_capability}
    return Machine(device=device.name, is_gpu=device.is_gpu, **known, **fields)


def package(name: str, works: bool | None, why: str) -> Package:
    """A package of `INSTEAD`, with what the labs show where it doesn't work."""
    return Package(name=name, works=works, why=why, instead=INSTEAD[name])


def why_not(name: str, machine: Machine) -> Package | None:
    """A package that can't work on this device, with the reason; None if it may."""
    if name != "flash_attn" or machine.compute_capability >= FLASH_CAPABILITY:
        return None
    here = f"this one has {machine.compute_capability}" if machine.is_gpu else "there is none here"
    return package(name, False, f"it needs a GPU of compute capability {FLASH_CAPABILITY} or newer; {here}")
