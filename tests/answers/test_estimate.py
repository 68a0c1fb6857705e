"""The estimate against the real code without memory, and against what an H200 allocated."""

import random

import pytest
from helpers import SHAPE, VARIANTS, dry_variant, phase_peaks, random_run, small_run

from labs_utils.answer import PARTS
from labs_utils.answers.dry_run import dry_run
from labs_utils.answers.estimate import estimate, step_timeline
from labs_utils.device import CPU, H200, find_device
from labs_utils.memory_model.ranks import candidate_ranks, distributed_step
from labs_utils.run import LLAMA_8B, ModelShape, Run

# What the course promises. The two differ by scalars (0-dim tensors of the loss and of masks), a few bytes in all.
AGREEMENT = 1e-3
SCALARS_BYTES = 64

# hidden_size, intermediate_size, layers, heads, key/value heads, vocabulary
A = ModelShape.model_validate(
    dict(zip(ModelShape.model_fields, (2560, 6912, 10, 20, 4, 64000, 128, False), strict=True))
)
B = ModelShape.model_validate(
    dict(zip(ModelShape.model_fields, (3072, 8192, 8, 24, 8, 128256, 128, True), strict=True))
)
LIGER_LAYERS, LIGER_LOSS = {"layer_kernels": "liger"}, {"loss_kernel": "liger"}
FULL = {"checkpointing": "full"}

# torch.cuda.max_memory_allocated on an H200, torch 2.11, transformers 5.17, one process a run, the third step.
MEASURED_8B = [
    ({"seq_len": 2048}, 64_631_328_256),
    ({"seq_len": 8192, **FULL}, 65_193_546_240),
    ({"seq_len": 16384, **FULL, **LIGER_LAYERS, **LIGER_LOSS}, 65_836_585_472),
]
MEASURED_A = [
    ({}, 10_063_836_672),
    ({"attention": "eager"}, 15_214_628_352),
    ({"attention": "eager", **FULL}, 9_316_343_296),
    ({"checkpointing": "keep-attention"}, 8_233_406_976),
    ({"checkpointing": "keep-matmul-attention"}, 8_960_587_264),
    ({"checkpointing": "every-2"}, 8_987_107_840),
    ({"attention": "sdpa-math"}, 13_851_741_696),
    ({"padded": True, "micro_batch": 2}, 14_362_504_704),
    ({"micro_batch": 2, **LIGER_LAYERS}, 12_405_839_360),
    ({"micro_batch": 2, **FULL, **LIGER_LAYERS, **LIGER_LOSS}, 8_291_568_640),
    ({"seq_len": 1024, "optimizer": "adamw-foreach"}, 10_259_036_160),
    ({"seq_len": 1024, "optimizer": "adamw-loop"}, 8_876_386_304),
    ({"seq_len": 1024, "precision": "fp32"}, 16_444_170_752),
    ({"seq_len": 1024, "precision": "bf16-mixed"}, 16_439_976_448),
    ({"seq_len": 1024, "grad_accum": 3}, 10_141_403_648),
]
MEASURED_B = [
    ({"seq_len": 1024, **FULL}, 11_241_733_120),
    ({"seq_len": 1024, **FULL, **LIGER_LOSS}, 10_458_971_136),
]


@pytest.mark.parametrize("changes, measured_bytes", MEASURED_8B, ids=str)
def test_the_8b_model_is_estimated_to_a_hundredth_of_a_percent_of_an_h200(changes, measured_bytes):
    answer = estimate(Run(model=LLAMA_8B, **changes), H200)
    assert answer.outcome == "ok"
    assert answer.peak_bytes == pytest.approx(measured_bytes, rel=1e-4)  # all three are within 0.0001 %


# Blocks that the allocator leaves unsplit depend on the order of a few tensors: up to 0.06 % of these models.
@pytest.mark.parametrize("model, rows", [(A, MEASURED_A), (B, MEASURED_B)], ids=["A", "B"])
def test_a_1b_model_is_estimated_to_a_tenth_of_a_percent_of_an_h200(model, rows):
    for changes, measured_bytes in rows:
        answer = estimate(Run.parse({"model": model.model_dump(), "seq_len": 2048, **changes}), H200)
        assert answer.peak_bytes == pytest.approx(measured_bytes, rel=1e-3), changes


KEPT = ("keep-attention", "keep-matmul-attention")


def check_agreement(run, device):
    estimated, dry = estimate(run, device), dry_run(run, device)
    assert dry.outcome == "ok", dry.provenance
    assert estimated.peak_bytes == pytest.approx(dry.peak_bytes, rel=AGREEMENT), run
    assert phase_peaks(estimated) == pytest.approx(phase_peaks(dry), rel=AGREEMENT), run
    assert waiting_bytes(estimated) == pytest.approx(waiting_bytes(dry), rel=AGREEMENT), run


def waiting_bytes(answer):
    """What waits on the host, where anything does."""
    return answer.provenance.get("host_bytes", 0)


def check_random_runs(seed, count, device, layers, **changes):
    rng = random.Random(seed)
    for _ in range(count):
        check_agreement(random_run(rng, device, layers, **changes), device)


def test_the_estimate_is_the_dry_run():
    check_random_runs(0, 6, CPU, layers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_the_estimate_is_the_dry_run_of_100_random_shapes_and_recipes(seed):
    check_random_runs(seed, 20, CPU, layers=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 202))
def test_the_estimate_is_the_dry_run_on_an_h200(seed):
    check_random_runs(seed, 10, H200, layers=5)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["full", "every-2", "every-3", *KEPT, "offload"])
def test_every_kind_of_checkpointing_is_estimated_for_10_random_shapes(checkpointing):
    attention = {"attention": "sdpa"} if checkpointing in KEPT else {}
    check_random_runs(300, 10, CPU, layers=5, checkpointing=checkpointing, **attention)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_estimate_and_the_dry_run_agree_on_what_the_peak_is_made_of(variant):
    estimated, dry = estimate(small_run(**VARIANTS[variant]), CPU), dry_variant(variant)
    assert estimated.parts == pytest.approx(dry.parts, abs=SCALARS_BYTES)
    assert estimated.phase == dry.phase


@pytest.mark.parametrize("device", ["cpu", "H200", "T4"])
def test_the_parts_of_the_8b_model_are_those_of_its_recipe(device):
    answer = estimate(Run(model=LLAMA_8B, seq_len=512), device)
    assert tuple(answer.parts) == PARTS and sum(answer.parts.values()) == answer.peak_bytes
    for part, bytes_per_parameter in {"parameters": 2, "optimizer_states": 4}.items():
        assert answer.parts[part] == pytest.approx(bytes_per_parameter * LLAMA_8B.parameters, rel=1e-4)
    assert (answer.parts["workspace"] > 0) == (device != "cpu")


def test_a_run_that_doesnt_fit_is_an_answer_with_its_peak():
    answer = estimate(Run(model=LLAMA_8B), "T4")
    assert answer.outcome == "out of memory"
    assert answer.peak_bytes > find_device("T4").memory_bytes


def test_of_many_micro_steps_all_but_the_first_are_alike():
    peaks = [estimate(small_run(grad_accum=count), CPU).peak_bytes for count in (1, 2, 3, 50)]
    assert peaks[0] < peaks[1] == peaks[2] == peaks[3]


def test_longer_sequences_never_take_less():
    peaks = [estimate(small_run(seq_len=length), H200).peak_bytes for length in (16, 64, 256, 1024)]
    assert peaks == sorted(peaks)


@pytest.mark.parametrize(
    "changes, device, reason",
    [
        ({"mode": "infer"}, "cpu", "mode 'infer' isn't covered yet"),
        ({"weights": "nf4"}, "cpu", "weights 'nf4' isn't covered yet"),
        ({"world_size": 2}, "cpu", "world_size 2 needs engine 'ddp' or 'deepspeed', not 'torch'"),
        ({"offload": "all"}, "cpu", "offload 'all' needs engine 'deepspeed' and a zero_stage, not engine 'torch'"),
        ({"precision": "bf16-master"}, "cpu", "precision 'bf16-master' isn't covered yet"),
        ({"checkpointing": "offload", "padded": True}, "H200", "checkpointing 'offload' of a padded batch"),
        ({"attention": "eager", "checkpointing": "keep-attention"}, "cpu", "checkpointing 'keep-attention' keeps"),
        ({"attention": "sdpa-math", "padded": True}, "cpu", "attention 'sdpa-math' on a padded batch"),
        ({"attention": "flash_attention_2", "precision": "fp32"}, "cpu", "attention 'flash_attention_2' has no fp32"),
        ({"attention": "sdpa-efficient"}, "H200", "PyTorch's memory-efficient attention has no kernel for grouped"),
    ],
    ids=str,
)
def test_what_isnt_covered_is_an_answer_with_the_reason(changes, device, reason):
    for ask in (estimate, dry_run):
        answer = ask(small_run(**changes), device)
        assert answer.outcome == "unsupported" and answer.peak_bytes is None
        assert answer.provenance["reason"].startswith(reason)


def test_heads_too_large_for_fused_kernels_are_left_to_eager_attention():
    run = Run.parse({"model": {**Run().model.model_dump(), "head_dim": 512}, "seq_len": 16})
    assert "head_dim 512" in estimate(run, "H200").provenance["reason"]
    assert estimate(run.replace(attention="eager"), "H200").outcome == "ok"


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"zero_stage": 3, "layer_kernels": "liger"}, "Liger's kernels at ZeRO stage 3 aren't estimated yet"),
        (
            {"zero_stage": 3, "zero": {"stage3_max_reuse_distance": -1}},
            "zero key 'stage3_max_reuse_distance' must",
        ),
        (
            {"zero_stage": 2, "offload": "optimizer", "optimizer": "adamw-loop"},
            "optimizer 'adamw-loop' with offload isn't",
        ),
        ({"zero_stage": 1, "zero": {"round_robin_gradients": True}}, "zero key 'round_robin_gradients' isn't"),
        ({"zero_stage": 1, "precision": "bf16-mixed"}, "with DeepSpeed take precision 'bf16-master'"),
        ({"engine": "ddp", "precision": "bf16-master"}, "precision 'bf16-master' is DeepSpeed's"),
        ({"zero_stage": 1, "zero": {"stage": 0}}, "zero key 'stage' is a field of the run"),
        ({"zero_stage": 1, "zero": {"reduce_bucket_size": -5}}, "zero key 'reduce_bucket_size' must be a whole number"),
        ({"zero_stage": 1, "zero": {"reduce_bucket_size": "5e8"}}, "zero key 'reduce_bucket_size' must be a whole"),
        ({"zero_stage": 1, "zero": {"reduce_bucket_size": 1.5}}, "zero key 'reduce_bucket_size' must be a whole"),
        ({"zero_stage": 1, "zero": {"overlap_comm": "false"}}, "zero key 'overlap_comm' must be true or false"),
    ],
    ids=str,
)
def test_what_isnt_covered_of_several_ranks_is_an_answer_with_the_reason(changes, reason):
    run = small_run(**{"precision": "bf16-master", "world_size": 2, **changes})
    answer = estimate(run, "cpu")
    assert answer.outcome == "unsupported" and answer.provenance["reason"].startswith(reason)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_zero_keeps_2_and_12_nths_bytes_a_parameter_and_steps_at_2_and_20_nths(ranks):
    run = Run(model=LLAMA_8B, seq_len=16, zero_stage=2, world_size=ranks, precision="bf16-master")
    answer, parameters = estimate(run, CPU), LLAMA_8B.parameters
    states = answer.parts["parameters"] + answer.parts["optimizer_states"]
    assert states == pytest.approx(parameters * (2 + 12 / ranks), rel=1e-3)
    steps_bytes = answer.provenance["phase_peak_bytes"]["optimizer"]
    largest = LLAMA_8B.vocab_size * LLAMA_8B.hidden_size  # an owner keeps the whole of a gradient that it shares
    assert parameters * (2 + 20 / ranks) <= steps_bytes * 1.0001 <= parameters * (2 + 20 / ranks) + 2.001 * largest


@pytest.mark.parametrize("ranks", [2, 8])
def test_stage_3_keeps_16_nths_bytes_a_parameter_and_steps_at_less_in_sub_groups(ranks):
    run = Run(model=LLAMA_8B, seq_len=16, zero_stage=3, world_size=ranks, precision="bf16-master")
    answer, parameters = estimate(run, CPU), LLAMA_8B.parameters
    bucket_bytes, sub_group_bytes = 2 * 500_000_000, 6 * 1_000_000_000
    whole = estimate(run.replace(zero={"sub_group_size": 10**12}), CPU).provenance["phase_peak_bytes"]["optimizer"]
    assert whole == pytest.approx(parameters * 22 / ranks + bucket_bytes, rel=1e-3)
    parts = answer.provenance["phase_peak_bytes"]["optimizer"]
    assert parts <= whole * 1.0001 and parts >= parameters * 16 / ranks + bucket_bytes
    assert parts <= parameters * 16 / ranks + bucket_bytes + 1.1 * sub_group_bytes + 2 * 525_336_576 * 6 / ranks


def stage_3_backward_bytes(**zero):
    run = Run(model=LLAMA_8B, seq_len=16, zero_stage=3, world_size=8, precision="bf16-master", zero=zero)
    return estimate(run, CPU).provenance["phase_peak_bytes"]["backward"]


def test_stage_3_keeps_whole_weights_up_to_the_reuse_distance_and_gathers_ahead_up_to_the_bucket():
    kept, released = stage_3_backward_bytes(), stage_3_backward_bytes(stage3_max_reuse_distance=0)
    everything = stage_3_backward_bytes(stage3_max_reuse_distance=10**12)
    assert released <= kept < everything and everything - released > 1.6 * LLAMA_8B.parameters
    nothing, much = (
        stage_3_backward_bytes(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=size) for size in (0, 10**9)
    )
    assert nothing < released < much


def test_ddp_takes_a_second_set_of_gradients_while_it_accumulates():
    peaks = [estimate(small_run(engine="ddp", world_size=2, grad_accum=count), CPU).peak_bytes for count in (1, 2)]
    assert peaks[1] - peaks[0] == pytest.approx(2 * small_run().model.parameters, rel=0.01)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("vocab_size", [50, 3000])
def test_of_many_ranks_those_that_tell_are_asked(stage, vocab_size):
    model = {**SHAPE, "vocab_size": vocab_size}
    ranks = {"zero_stage": stage, "world_size": 8, "zero": {"reduce_bucket_size": 5000}}
    run = small_run(model=model, seq_len=4, precision="bf16-master", **ranks)
    peaks = [step_timeline(distributed_step(run, CPU, rank)).peak().live_bytes for rank in range(8)]
    assert len(candidate_ranks(run, CPU)) < 8 and max(peaks) > 1.01 * min(peaks)
    assert estimate(run, CPU).peak_bytes == max(peaks)
