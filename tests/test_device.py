"""Devices: what the table says, which attention kernel a run gets, and what this machine is taken for."""

import subprocess

import psutil
import pytest

from labs_utils import device as devices
from labs_utils.device import CPU, DeviceError, find_device, known_devices, this_device
from labs_utils.run import Run

GPUS = [device for device in known_devices().values() if device.is_gpu]
GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 2}
EQUAL = {"num_attention_heads": 8, "num_key_value_heads": 8}
SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 1, "vocab_size": 100}


def run_of(heads, **changes):
    return Run.parse({"model": {**SIZES, **heads}, **changes})


def test_the_table_says_everything_that_memory_needs():
    assert len(GPUS) >= 5
    for gpu in GPUS:
        assert gpu.matches and gpu.memory_bytes > 10 * 2**30 and gpu.multiprocessors > 1
        assert gpu.workspace_bytes == (32 * 2**20 if int(gpu.compute_capability) == 9 else 8519680)


@pytest.mark.parametrize("name", ["V100-32GB", "T4"])
@pytest.mark.parametrize(
    "heads, changes, kernel",
    [
        (EQUAL, {}, "efficient"),
        (GROUPED, {}, "math"),
        (GROUPED, {"padded": True}, "efficient"),
        (GROUPED, {"attention": "eager"}, "eager"),
    ],
)
def test_cards_before_ampere_have_no_flash_kernel(name, heads, changes, kernel):
    assert find_device(name).attention_kernel(run_of(heads, **changes)) == kernel


@pytest.mark.parametrize(
    "heads, changes, kernel",
    [
        (GROUPED, {}, "flash"),
        (GROUPED, {"precision": "bf16-mixed"}, "flash"),
        (GROUPED, {"attention": "flash_attention_2"}, "flash"),
        (GROUPED, {"padded": True}, "efficient"),
        (GROUPED, {"precision": "fp32"}, "math"),
        (EQUAL, {"precision": "fp32"}, "efficient"),
        (EQUAL, {"attention": "sdpa-efficient"}, "efficient"),
        (GROUPED, {"attention": "sdpa-cudnn"}, "cudnn"),
        (GROUPED, {"attention": "sdpa-math"}, "math"),
        (GROUPED, {"attention": "eager"}, "eager"),
    ],
)
def test_an_h200_takes_flash_for_16_bits_without_a_mask(heads, changes, kernel):
    assert devices.H200.attention_kernel(run_of(heads, **changes)) == kernel


@pytest.mark.parametrize("changes", [{}, {"precision": "fp32"}, {"padded": True}], ids=str)
def test_a_cpu_always_has_its_own_flash_kernel(changes):
    assert CPU.attention_kernel(run_of(GROUPED, **changes)) == "flash"


@pytest.mark.parametrize("device", known_devices().values(), ids=lambda device: device.name)
def test_a_device_is_found_by_name_whatever_its_case(device):
    assert find_device(device.name.upper()) is find_device(device.name.lower()) is device


def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(DeviceError, match=r"^'H2000' is not a device in data/gpus.csv; known: cpu, H200, .*T4$"):
        find_device("H2000")


def test_a_known_device_is_a_name_of_the_module():
    assert devices.T4.name == "T4"
    with pytest.raises(AttributeError):
        _ = devices.H2000


def this_machine(monkeypatch, listed: str | Exception):
    """`this_device()` where nvidia-smi prints `listed` or fails with it."""

    def nvidia_smi(command, **keywords):
        assert command[0] == "nvidia-smi"
        if isinstance(listed, Exception):
            raise listed
        return subprocess.CompletedProcess(command, 0, stdout=listed)

    monkeypatch.setattr(devices.subprocess, "run", nvidia_smi)
    return this_device.__wrapped__()


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_of_the_table_is_recognised_by_the_name_its_driver_gives(monkeypatch, gpu):
    listed = f"{gpu.matches}, 12345, {gpu.compute_capability}\nTesla K80, 11441, 3.7\n"
    assert this_machine(monkeypatch, listed) is gpu


@pytest.mark.parametrize(
    "listed, workspace_bytes",
    [("NVIDIA L4, 23034, 8.9\n", 8519680), ("NVIDIA GH200 480GB, 97871, 9.0\n", 32 * 2**20)],
)
def test_another_gpu_keeps_its_own_name_memory_and_workspace(monkeypatch, listed, workspace_bytes):
    name, memory_mib, capability = listed.strip().split(", ")
    found = this_machine(monkeypatch, listed)
    assert (found.name, found.memory_bytes) == (name, int(memory_mib) * 2**20)
    assert (found.compute_capability, found.workspace_bytes) == (float(capability), workspace_bytes)


@pytest.mark.parametrize(
    "listed", [FileNotFoundError(), subprocess.CalledProcessError(9, "nvidia-smi"), "", "\n"], ids=repr
)
def test_a_machine_without_a_gpu_is_a_cpu_with_the_hosts_memory(monkeypatch, listed):
    found = this_machine(monkeypatch, listed)
    assert found.name == "cpu" and not found.is_gpu
    assert found.memory_bytes == psutil.virtual_memory().total


def test_a_gpu_that_shares_the_hosts_memory_has_no_memory_of_its_own(monkeypatch):
    assert this_machine(monkeypatch, "NVIDIA GB10, [N/A], 12.1\n").memory_bytes is None
