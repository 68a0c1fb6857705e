"""`dry_run`: the real model code over tensors that have shapes but no memory, tracked as if they had."""

from __future__ import annotations

import logging
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from labs_utils.answer import Answer
from labs_utils.answers.from_timeline import read_off
from labs_utils.coverage import why_not_dry_run
from labs_utils.device import CPU, Device, find_device
from labs_utils.memory_model import kernel_workspaces
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import warm_up, watch_optimizer, watch_parts

# torch logs a traceback for sizes that it refuses; the answer says the same in one sentence.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

MATRIX_PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default")


def dry_run(run: Run, device: Device | str | None = CPU) -> Answer:
    """What the run needs on a device, found by running its code without data.

    Fused attention kernels that a CPU lacks are stood for by its own one, which saves the same tensors;
    `provenance["note"]` says so.

    Returns:
        An `Answer` with `peak_bytes`, `phase` and `parts`, or with the outcome "unsupported" and the reason.

    Raises:
        DeviceError: for a name that isn't known.
    """
    device = device if isinstance(device, Device) else find_device(device)
    if reason := why_not_dry_run(run, device):
        return Answer.unsupported(run, "dry_run", device.name, reason)
    try:
        timeline = dry_run_timeline(run, device)
    except (RuntimeError, OverflowError) as error:  # tensors past 2**63 bytes, which no device could hold
        return Answer.unsupported(run, "dry_run", device.name, f"torch refused the run: {str(error).splitlines()[0]}")
    answer = read_off(timeline, run, "dry_run", device)
    if run.attention in ("flash_attention_2", "sdpa-efficient", "sdpa-cudnn"):
        answer.provenance["note"] = f"attention {run.attention!r} is stood for by PyTorch's flash attention for CPUs"
    return answer


def dry_run_timeline(run: Run, device: Device = CPU) -> Timeline:
    """Every storage of building the run, of warming up and of the step after it.

    The last step's phases are those of `labs_utils.answer.PHASES`. Of many micro-steps the first two are run: the
    others are like the second.
    """
    micro_steps = min(run.grad_accum, 2)
    tracker = GpuTracker(run, device) if device.is_gpu else MemoryTracker(run.model.vocab_size, run.tokens)
    with NoMemoryMode(), eager_masks(), tracker:
        step = TrainingStep(run.replace(attention=stand_in(run, device)), "cpu")
        step.scaler = torch.amp.GradScaler(enabled=False)  # it would ask whether a gradient overflowed
        watch_parts(tracker, step)
        warm_up(step, tracker, device, micro_steps)
        watch_optimizer(tracker, step)
        step(tracker.phase, micro_steps)
        tracker.phase("after")
    return tracker.timeline


def stand_in(run: Run, device: Device) -> str:
    """The attention that runs on a CPU in the place of the device's kernel."""
    kernel = device.attention_kernel(run)
    return {"eager": "eager", "math": "sdpa-math"}.get(kernel, "sdpa")


class NoMemoryMode(FakeTensorMode):
    """Fake tensors; a number that code reads from one (`.item()`), such as a step count, is 1."""

    def dispatch(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1
        return super().dispatch(func, types, args, kwargs)


def eager_masks():
    """Keep transformers from taking fake tensors for a graph capture, in which it builds causal masks it else skips.

    transformers 5.17 to 5.24, masking_utils.py: a position id that it can't read could be a packed sequence's.
    """
    return mock.patch("transformers.masking_utils.find_packed_sequence_indices", lambda *args, **kwargs: None)


class GpuTracker(MemoryTracker):
    """A tracker that adds what a GPU's libraries and kernels would take for themselves (`kernel_workspaces`)."""

    def __init__(self, run: Run, device: Device):
        super().__init__(run.model.vocab_size, run.tokens)
        self._run, self._device, self._threads = run, device, set()

    def after_operator(self, func, args) -> None:
        name = str(func)
        in_backward = "backward" in self.current_phase
        if name in MATRIX_PRODUCTS and in_backward not in self._threads:
            self._threads.add(in_backward)
            self.hold(self._device.workspace_bytes, name)
        for identity in [self.hold(nbytes, name) for nbytes in self._scratch(name, args)]:
            self.release(identity)

    def _scratch(self, name: str, args: tuple) -> list[int]:
        if name == "aten._softmax_backward_data.default":
            return kernel_workspaces.softmax_backward(args[0].numel())
        if name == "aten.embedding_dense_backward.default":
            return kernel_workspaces.embedding_backward(args[1].numel(), args[2], args[0].shape[-1])
        if name == "aten._scaled_dot_product_flash_attention_for_cpu_backward.default":
            (batch, heads, seq_len, head_dim), kv_heads = args[1].shape, args[2].shape[1]
            if self._device.attention_kernel(self._run) == "efficient":
                return kernel_workspaces.efficient_backward(batch, seq_len, heads, head_dim)
            return kernel_workspaces.flash_backward(batch, seq_len, heads, kv_heads, head_dim)
        return []
