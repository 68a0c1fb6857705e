"""`lab03.batch_plan`: micro-batch and micro-steps of several ranks, held against plans tried one by one."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from labs_utils.exercises.contract import Mark
from labs_utils.exercises.marking import close, exercise_of_situations

PLAN_KEYS = ("target_tokens", "seq_len", "world_size", "largest_micro_batch", "sequences")
CAUSES = {
    "grad_accum": "how many sequences fit all ranks in one micro-step, and what if the last is only partly needed?",
    "micro_batch": "with this many micro-steps, need the micro-batch be the largest?",
    "tokens_per_step": "count what a step really reads, not what was asked for",
    "steps": "a step reads whole micro-batches, on every rank, grad_accum times",
}


def draw_plans(rng) -> dict:
    """Batches that need one micro-step, a few and many; two divide evenly, one of them into the largest micro-batch."""
    return {
        "one micro-step": draw_plan(rng, accumulation=1),
        "a few micro-steps": draw_plan(rng, accumulation=int(rng.integers(2, 6))),
        "many micro-steps": draw_plan(rng, accumulation=int(rng.integers(12, 40))),
        "full micro-steps": draw_even_plan(rng, spare=0),
        "even micro-steps": draw_even_plan(rng, spare=1),
    }


def draw_even_plan(rng, spare: int) -> dict:
    """A target that a plan reaches exactly, with micro-batches of so many sequences less than the largest."""
    world_size, seq_len = 2 ** int(rng.integers(1, 6)), 512 * int(rng.integers(2, 9))
    micro_batch, accumulation = int(rng.integers(9, 20)), int(rng.integers(2, 8))
    sequences = micro_batch * accumulation * world_size
    return {
        "target_tokens": sequences * seq_len,
        "seq_len": seq_len,
        "world_size": world_size,
        "largest_micro_batch": micro_batch + spare,
        "sequences": sequences * int(rng.integers(20, 200)),
    }


def draw_plan(rng, accumulation: int) -> dict:
    """A batch that needs so many micro-steps, of which the last may be only partly needed, and some tokens less."""
    world_size, seq_len = 2 ** int(rng.integers(1, 6)), 512 * int(rng.integers(2, 9))
    micro_batch = int(rng.integers(9, 20))
    most_spare = micro_batch if accumulation == 1 else (micro_batch - 1) // (accumulation - 1)
    spare = int(rng.integers(min(1, most_spare), most_spare + 1))
    unused = int(rng.integers(min(accumulation, micro_batch - (accumulation - 1) * spare)))
    needed_tokens = (micro_batch * accumulation - unused) * seq_len * world_size
    return {
        "target_tokens": needed_tokens - int(rng.integers(1, seq_len * world_size)),
        "seq_len": seq_len,
        "world_size": world_size,
        "largest_micro_batch": micro_batch + spare,
        "sequences": int(micro_batch * accumulation * world_size * (rng.integers(20, 200) + rng.uniform(0.6, 0.9))),
    }


def first_plan(target_tokens: int, seq_len: int, world_size: int, largest_micro_batch: int, sequences: int) -> dict:
    """The first plan that reaches the target, tried one by one, and the steps that torch's samplers make."""
    for grad_accum in count(1):
        for micro_batch in range(1, largest_micro_batch + 1):
            tokens = micro_batch * grad_accum * world_size * seq_len
            if tokens >= target_tokens:
                sampler = DistributedSampler(range(sequences), world_size, rank=0, drop_last=True)
                micro_batches = len(BatchSampler(sampler, micro_batch, drop_last=True))
                steps = micro_batches // grad_accum
                plan = {"micro_batch": micro_batch, "grad_accum": grad_accum}
                return {**plan, "tokens_per_step": tokens, "steps": steps}


def compare_plan(situation: dict, got: Any, expected: dict) -> Mark:
    """`close`, with the question that leads to what is wrong."""
    mark = close(situation, got, expected)
    wrong = mark.sentence.partition(":")[0]
    return mark._replace(sentence=f"{mark.sentence}: {CAUSES[wrong]}", cause=wrong) if wrong in CAUSES else mark


EXERCISE = exercise_of_situations(
    id="lab03.batch_plan",
    points=2,
    minutes=15,
    difficulty="easy",
    draw=draw_plans,
    call=lambda fn, situation: fn(*(situation[key] for key in PLAN_KEYS)),
    truth=lambda situation: first_plan(**situation),
    compare=compare_plan,
    hints={
        "grad_accum": (
            "At least means rounding up, -(-a // b): first the sequences of one rank, then the micro-steps with "
            "the largest micro-batch."
        ),
        "micro_batch": (
            "With that many micro-steps, the smallest micro_batch that is enough: divide again, and round up."
        ),
        "tokens_per_step": (
            "tokens in a step = micro_batch * seq_len * grad_accum * world_size, as they are, not as they were "
            "asked for."
        ),
        "steps": (
            "A step takes micro_batch * grad_accum * world_size sequences; what is left over at the end makes no step."
        ),
    },
    why="Tokens in a step are a product of four numbers. "
    "Fix three, and the fourth follows by a division that rounds up.",
)
