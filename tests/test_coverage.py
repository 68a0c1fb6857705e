"""Who can't answer a run says why, in a sentence that is the same whoever is asked.

`estimate`'s sentences are in `answers/pinned.jsonl`; here are those of the dry run and of a measurement on a CPU.
"""

import pytest
from helpers import small_run

from labs_utils import dry_run, measure

LIGER = "Liger's kernels need a GPU; estimate covers them"
RANKS = {"world_size": 2, "precision": "fp32"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_kernels": "liger"}, LIGER),
        ({"loss_kernel": "liger"}, LIGER),
        ({"engine": "ddp", **RANKS}, "engine 'ddp' isn't dry-run; estimate covers it"),
        ({"zero_stage": 1, **RANKS}, "engine 'deepspeed' isn't dry-run; estimate covers it"),
        (
            {"optimizer": "adamw-8bit"},
            "bitsandbytes' optimizers aren't made of torch operators; estimate covers them",
        ),
    ],
    ids=str,
)
def test_a_dry_run_says_what_is_not_made_of_torch_operators(changes, reason):
    answer = dry_run(small_run(**changes), "H200")
    assert (answer.outcome, answer.provenance["reason"]) == ("unsupported", reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_kernels": "liger"}, LIGER),
        ({"loss_kernel": "liger"}, LIGER),
        (
            {"zero_stage": 1, **RANKS, "precision": "fp16-master"},
            "DeepSpeed trains in fp16 on GPUs only; take 'bf16-master' on a CPU",
        ),
    ],
    ids=str,
)
def test_a_cpu_says_what_it_cannot_train(changes, reason):
    answer = measure(small_run(**changes))
    assert (answer.outcome, answer.provenance["reason"]) == ("unsupported", reason)
