"""`doctor`: what this machine can do, in one `Report`, and what the labs will therefore show on it."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import util

from labs_utils.device import CPU, this_device, usable_cores
from labs_utils.doctor.machine_rates import Measured, Rate, measured_rates
from labs_utils.doctor.report import INSTEAD, Machine, Package, Report, machine_with, package, why_not
from labs_utils.versions import driver_version, package_versions

TRIAL_SECONDS = 60


def this_machine() -> Machine:
    """This machine as NVIDIA's driver, torch and the operating system see it."""
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


def tried(name: str, machine: Machine) -> Package:
    """Try a package in a process of its own, so that one that crashes or hangs takes nothing with it."""
    if impossible := why_not(name, machine):
        return impossible
    if util.find_spec(name) is None:
        return package(name, False, "it isn't installed")
    command = [sys.executable, "-m", "labs_utils.workers.package_trial", name]
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

    `measure_in_full`, if given (`operator_rates.measured_in_full`), measures what `Report.details` holds.
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
