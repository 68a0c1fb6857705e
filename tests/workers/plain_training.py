"""The witness of every launch: the same steps in plain PyTorch, in this process, on the batches of all ranks."""

import torch

from labs_utils.run import Run
from labs_utils.training.distributed import MODEL_SEED, batch_seed
from labs_utils.training.step import TrainingStep, build_batch


def plain_losses(run: Run, ranks: int, steps: int) -> list[list[float]]:
    """The losses that each of so many ranks has, one a step: what is a rank's batch is a micro-batch here."""
    torch.manual_seed(MODEL_SEED)
    step = TrainingStep(run.replace(engine="torch", zero_stage=0, world_size=1, grad_accum=ranks, zero={}), "cpu")
    batches, losses = [], []
    for rank in range(ranks):
        torch.manual_seed(batch_seed(rank))
        batches.append(build_batch(run, step.device))
    step.model.register_forward_hook(lambda model, inputs, output: losses.append(output.loss.item()))
    for _ in range(steps):
        for step.batch in batches:
            step.micro_step(lambda phase: None)
        step.optimizer_step()
    return [losses[rank::ranks] for rank in range(ranks)]
