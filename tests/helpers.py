"""What several tests share: small shapes, random runs, and the witnesses of a real step on the CPU."""

import gc
from functools import cache

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from labs_utils.answers.dry_run import dry_run
from labs_utils.coverage import why_not_estimated
from labs_utils.device import CPU
from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.training.step import TrainingStep
from labs_utils.training.tracked import watch_optimizer, watch_parts

SHAPE = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "head_dim": 16,
}  # fmt: skip
RNG_STATE_BYTES = torch.get_rng_state().nbytes

# One run for each thing that a step may do differently.
VARIANTS = {
    "sdpa": {},
    "padded": {"padded": True, "micro_batch": 2},
    "eager": {"attention": "eager", "micro_batch": 2},
    "math": {"attention": "sdpa-math"},
    "full": {"checkpointing": "full"},
    "every-2": {"checkpointing": "every-2"},
    "keep-attention": {"checkpointing": "keep-attention"},
    "keep-matmul-attention": {"checkpointing": "keep-matmul-attention"},
    "offload": {"checkpointing": "offload"},
    "eager, full": {"attention": "eager", "checkpointing": "full"},
    "fp32": {"precision": "fp32"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "fp16-mixed": {"precision": "fp16-mixed"},
    "foreach": {"optimizer": "adamw-foreach"},
    "loop": {"optimizer": "adamw-loop"},
    "sgd": {"optimizer": "sgd"},
    "accumulated": {"grad_accum": 3},
    "one key/value head": {"model": {**SHAPE, "num_key_value_heads": 1}},
    "tied": {"model": {**SHAPE, "tie_word_embeddings": True}},
    "tied, bf16-mixed": {"model": {**SHAPE, "tie_word_embeddings": True}, "precision": "bf16-mixed", "seq_len": 16},
}

QUICK = ("sdpa", "padded", "eager", "full", "bf16-mixed", "loop")
VARIANT_PARAMETERS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in VARIANTS]


def small_run(**changes):
    """A run of a few milliseconds on a CPU, with some fields changed."""
    return Run.parse({"model": SHAPE, "seq_len": 128, **changes})


@cache
def dry_variant(name):
    """The dry run of a variant on a CPU."""
    return dry_run(small_run(**VARIANTS[name]), CPU)


def random_run(rng, device, layers, **changes):
    """A random run that the formulas cover, of a random shape of up to so many layers, with some fields given."""
    while True:
        run = Run.parse({"model": random_shape(rng, layers), **random_recipe(rng), **changes})
        if why_not_estimated(run, device) is None:
            return run


def random_shape(rng, layers):
    """Query heads by key/value head, head_dim beside hidden_size / heads, tied or not; no size equals another's."""
    kv_heads = rng.choice([1, 2, 3, 4])
    return {
        "hidden_size": rng.choice([96, 128, 192, 256, 320]),
        "intermediate_size": rng.choice([130, 344, 512, 900]),
        "num_hidden_layers": min(layers, rng.choice([1, 1, 2, 2, 3, 5])),
        "num_attention_heads": kv_heads * rng.choice([1, 2, 4]),
        "num_key_value_heads": kv_heads,
        "vocab_size": rng.choice([50, 300, 1000, 5000]),
        "head_dim": rng.choice([16, 32, 40, 64]),
        "tie_word_embeddings": rng.random() < 0.4,
    }


def random_recipe(rng):
    """How a random shape is trained. One padded token is left out: transformers takes it for decoding with a cache."""
    seq_len = rng.choice([1, 2, 17, 63, 130, 256])
    return {
        "seq_len": seq_len,
        "micro_batch": rng.choice([1, 1, 2, 3]),
        "grad_accum": rng.choice([1, 1, 2, 3]),
        "padded": seq_len > 1 and rng.random() < 0.25,
        "precision": rng.choice(["bf16", "bf16", "fp32", "bf16-mixed", "fp16-mixed"]),
        "optimizer": rng.choice(["adamw", "adamw", "adamw-foreach", "adamw-loop", "sgd", "none"]),
        "attention": rng.choice(["sdpa", "sdpa", "eager", "sdpa-math"]),
        "checkpointing": rng.choice(
            ["none", "none", "full", "every-2", "keep-attention", "keep-matmul-attention", "offload"]
        ),
    }


def phase_peaks(answer):
    """The peak bytes of each phase."""
    return answer.provenance["phase_peak_bytes"]


def tracked_step(run) -> Timeline:
    """What the tracker sees of the run's second step with real tensors on the CPU, labelled as `dry_run` labels it."""
    with MemoryTracker(run.model.vocab_size, run.tokens) as tracker:
        step = TrainingStep(run, "cpu")
        watch_parts(tracker, step)
        step(lambda phase: tracker.phase(f"warm {phase}"))
        watch_optimizer(tracker, step)
        step(tracker.phase)
        tracker.phase("after")
    return tracker.timeline


def profiled_peak_bytes(run) -> int:
    """The peak of the run's second step on the CPU: what was there before it, plus torch.profiler's running sum."""
    step = TrainingStep(run, "cpu")
    step()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    live_bytes = peak_bytes = resident_bytes(step)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live_bytes += event.nbytes()
        peak_bytes = max(peak_bytes, live_bytes)
    return peak_bytes


def resident_bytes(step) -> int:
    """Parameters, buffers, batch and optimizer states, each storage once."""
    states = step.optimizer.state.values() if step.optimizer else ()
    tensors = [*step.model.parameters(), *step.model.buffers(), *step.batch.values()]
    tensors += [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
