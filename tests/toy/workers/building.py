"""A worker that builds a run's step, and tells what was alive while the model was built and what came out of it."""

import hashlib
from unittest.mock import patch

import deepspeed
import torch

from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training import distributed
from labs_utils.training.step import build_model
from labs_utils.workers.rank import rank_device, serve


def work(argument, progress):
    tracker = MemoryTracker()

    def tracked(*args):
        with tracker:
            return build_model(*args)

    with patch.object(distributed, "build_model", tracked):
        model = distributed.build_step(Run.parse(argument), rank_device()).model.module
    with deepspeed.zero.GatheredParameters(model.parameters()):
        weights = digest(model.parameters())
    buffers = sorted({str(buffer.dtype) for buffer in model.buffers()})
    return {"most_bytes": tracker.timeline.peak("before").live_bytes, "weights": weights, "buffers": buffers}


def digest(tensors):
    """What tells tensors from others, to the last bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    serve(work)
