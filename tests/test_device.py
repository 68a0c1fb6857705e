"""Devices: what the table says, which attention kernel a run gets, and what this machine is taken for."""

import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from labs_utils import device as devices
from labs_utils.device import CPU, DeviceError, find_device, known_devices, this_device
from labs_utils.run import Run
from labs_utils.versions import driver_version

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


class Driver(ModuleType):
    """A stand-in for `pynvml`: a driver with these GPUs, each (name, bytes or None, capability); None: no driver."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, gpus: list[tuple] | None):
        super().__init__("pynvml")
        self.gpus, self.is_open = gpus, False

    def nvmlInit(self):
        if self.gpus is None:
            raise self.NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"

    def nvmlDeviceGetHandleByIndex(self, index):
        if not self.is_open or index >= len(self.gpus):
            raise self.NVMLError("Not Found")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu):
        return gpu[0]

    def nvmlDeviceGetMemoryInfo(self, gpu):
        if gpu[1] is None:
            raise self.NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(total=gpu[1])

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return gpu[2]


@pytest.fixture
def machine_with(monkeypatch):
    """`this_device()` on a machine whose driver knows these GPUs; without any argument, one without `pynvml`."""

    def look(*gpus):
        driver = Driver(*gpus) if gpus else None
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        device = this_device.__wrapped__()
        assert not gpus or not driver.is_open
        return device

    return look


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_of_the_table_is_recognised_by_the_name_its_driver_gives(machine_with, gpu):
    capability = [int(digit) for digit in str(gpu.compute_capability).split(".")]
    assert machine_with([(gpu.matches, 12345 * 2**20, capability), ("Tesla K80", 11441 * 2**20, [3, 7])]) is gpu


@pytest.mark.parametrize(
    "gpu, workspace_bytes",
    [(("NVIDIA L4", 24152899584, [8, 9]), 8519680), (("NVIDIA GH200 480GB", 102625181696, [9, 0]), 32 * 2**20)],
)
def test_another_gpu_keeps_its_own_name_memory_and_workspace(machine_with, gpu, workspace_bytes):
    name, memory_bytes, (major, minor) = gpu
    device = machine_with([gpu])
    assert (device.name, device.memory_bytes) == (name, memory_bytes)
    assert (device.compute_capability, device.workspace_bytes) == (major + minor / 10, workspace_bytes)


@pytest.mark.parametrize("driver", [(), (None,), ([],)], ids=["no package", "no driver", "no GPU"])
def test_a_machine_without_a_gpu_is_a_cpu_with_the_hosts_memory(machine_with, driver):
    device = machine_with(*driver)
    assert device.name == "cpu" and not device.is_gpu
    assert device.memory_bytes == psutil.virtual_memory().total


def test_a_gpu_that_shares_the_hosts_memory_has_no_memory_of_its_own(machine_with):
    assert machine_with([("NVIDIA GB10", None, [12, 1])]).memory_bytes is None


@pytest.mark.parametrize("gpus, version", [([], "580.159.04"), (None, "unknown")])
def test_the_drivers_version_is_its_own_or_unknown(monkeypatch, gpus, version):
    monkeypatch.setitem(sys.modules, "pynvml", Driver(gpus))
    assert driver_version() == version
