"""A worker that builds the steps of runs, and tells what was alive while each model was built and what it became."""

import hashlib
from unittest.mock import patch

import torch

from labs_utils.profiling.deepspeed_tensors import release
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training import distributed
from labs_utils.training.step import build_model
from labs_utils.workers.rank import rank_device, serve


def work(argument, progress):
    return [built_on_ranks(Run.parse(run)) for run in argument["runs"]]


def built_on_ranks(run: Run) -> dict:
    """As `built`, of the model inside a DeepSpeed engine, of which this rank may have a part."""
    import deepspeed

    tracker = MemoryTracker()

    def tracked(*args):
        with tracker:
            return build_model(*args)

    with patch.object(distributed, "build_model", tracked):
        step = distributed.build_step(run, rank_device())
    model = step.model.module
    with deepspeed.zero.GatheredParameters(model.parameters()):
        described = description(model, tracker)
    release(step)
    return described


def built(run: Run) -> dict:
    """The most bytes alive while plain PyTorch builds a run's model, its weights' digest and its buffers' types."""
    torch.manual_seed(distributed.MODEL_SEED)
    with MemoryTracker() as tracker:
        model = build_model(run, torch.device("cpu"))
    return description(model, tracker)


def description(model, tracker: MemoryTracker) -> dict:
    buffers = sorted({str(buffer.dtype) for buffer in model.buffers()})
    most_bytes = tracker.timeline.peak("before").live_bytes
    return {"most_bytes": most_bytes, "weights": digest(model.parameters()), "buffers": buffers}


def digest(tensors) -> str:
    """What tells tensors from others, to the last bit."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    serve(work)
