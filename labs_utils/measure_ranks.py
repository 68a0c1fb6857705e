"""`measure_ranks`: a live run of DDP or DeepSpeed, one process a rank, and one answer about all of them."""

from __future__ import annotations

from statistics import mean

from labs_utils.answer import Answer
from labs_utils.launch import launch
from labs_utils.run import Run

WORKER = "labs_utils.workers.zero"
PROCESS_BYTES = 500 * 10**6  # Python, torch, transformers and DeepSpeed, without a model


def measure_ranks(run: Run, limit_seconds: float) -> Answer:
    """What the rank with the largest peak needs.

    Returns:
        Its `Answer`; `provenance` has besides the `rank_peak_bytes` of all, the `losses` of the first steps (means over
        the ranks), `held_bytes` (after backward, by kind and device) and `communicated` (in a step, by collective).

    Raises:
        LaunchError: one sentence with the first real error of a rank.
    """
    ranks = [found[0] for found in launch(WORKER, {"runs": [run.to_dict()]}, run.world_size, limit_seconds)]
    peaks = [rank["answer"]["peak_bytes"] for rank in ranks]
    largest = ranks[peaks.index(max(peaks))]
    losses = [mean(of_ranks) for of_ranks in zip(*(rank["losses"] for rank in ranks), strict=True)]
    answer = Answer.model_validate(largest["answer"])
    answer.provenance.update({name: largest[name] for name in ("held_bytes", "communicated")})
    answer.provenance.update(rank_peak_bytes=peaks, losses=losses)
    return answer


def uses_gpus(run: Run) -> bool:
    """Whether there is a GPU for every rank; else they share the CPU."""
    import torch

    return torch.cuda.device_count() >= run.world_size


def host_bytes_of_ranks(run: Run) -> int:
    """The least that CPU ranks hold; none on GPUs: each builds the model, and 14 bytes a parameter are shared or not.

    Those are gradients, master weights and moments; activations are left out.
    """
    parameters = run.model.parameters
    replicas = 1 if run.zero_stage else run.world_size
    on_cpu = run.world_size * (2 * parameters + PROCESS_BYTES) + replicas * 14 * parameters
    return 0 if uses_gpus(run) else on_cpu
