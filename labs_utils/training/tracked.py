"""A training step under a memory tracker: which tensors are parameters, gradients, states and buffers."""

from __future__ import annotations

import torch

from labs_utils.device import Device
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.training.step import AUTOCAST_DTYPE


def warm_up(step, tracker: MemoryTracker, device: Device, micro_steps: int) -> None:
    """Make the optimizer's states: by a whole step where an allocator will remember it, else by its last part."""
    if device.is_gpu:
        step(lambda name: tracker.phase("warm " + name), micro_steps)
        return
    for parameter in step.model.parameters():
        parameter.grad = torch.empty_like(parameter)
    step.optimizer_step()


def watch_parts(tracker: MemoryTracker, step) -> None:
    """Tell the tracker which tensors are parameters, buffers and, as they arrive, gradients."""
    tracker.watch("parameters", step.model.parameters())
    tracker.watch("buffers", [*step.model.buffers(), *step.batch.values()])
    if step.run.model.tie_word_embeddings and step.run.precision in AUTOCAST_DTYPE:
        model = getattr(step.model, "module", step.model)  # DDP's wrapper has it inside
        tracker.sums_in_place(model.lm_head.weight)  # autocast's gradient of the head is a copy of its own
    for parameter in step.model.parameters():
        parameter.register_hook(lambda gradient: tracker.watch("gradients", [gradient]))


def watch_optimizer(tracker: MemoryTracker, step) -> None:
    """Tell the tracker which tensors are optimizer states; they exist once a step has been made."""
    if step.optimizer is not None:
        states = (value for state in step.optimizer.state.values() for value in state.values())
        tracker.watch("optimizer_states", (value for value in states if isinstance(value, torch.Tensor)))
