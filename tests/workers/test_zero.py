"""Real DDP and DeepSpeed ranks over gloo: their losses, what each holds, sends and takes, and `measure`'s answers.

The formulas are those of the ZeRO paper (arXiv 1910.02054, section 3) for K = 12: 2 bytes a weight, 2 a gradient, 4 a
master weight and 8 for Adam's moments. Beside them Adam keeps a step counter of 4 bytes for each tensor it updates.
"""

import os
from functools import cache
from importlib.util import find_spec
from statistics import mean

import pytest
import torch
from helpers import SHAPE, phase_peaks
from places import TOY
from plain_training import plain_losses
from toy.workers.building import built

from labs_utils.answer import Answer
from labs_utils.answers import measure_ranks
from labs_utils.answers.estimate import estimate
from labs_utils.answers.from_timeline import read_off
from labs_utils.answers.measure import Settings, measure, measure_all
from labs_utils.device import CPU
from labs_utils.memory_model.ranks import distributed_step
from labs_utils.precision import precision_of
from labs_utils.run import ModelShape, Run, RunError
from labs_utils.training.step import build_model
from labs_utils.workers import zero
from labs_utils.workers.launch import launch
from labs_utils.workers.rank_report import RankReport
from labs_utils.workers.silent_peers import KINDS, lone_rank

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed isn't installed")]

PARAMETERS = ModelShape(**SHAPE).parameters
LARGEST_PARAMETER = SHAPE["vocab_size"] * SHAPE["hidden_size"]
BUILDING = str(TOY / "workers/building.py")
STEPS = 4
STEP_COUNTER_BYTES = 4
BUCKET = 4000
# Nothing gathered ahead of its use or kept after it: then what a rank holds is its part, whatever the model's size.
NOTHING_KEPT = {
    "reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}  # fmt: skip
AHEAD = {
    "reduce_bucket_size": 10_000, "stage3_param_persistence_threshold": 100, "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 6000, "sub_group_size": 9000,
}  # fmt: skip
FP32 = {
    "ddp": {"engine": "ddp"},
    "ddp, accumulated": {"engine": "ddp", "grad_accum": 2},
    **{f"stage {stage}": {"zero_stage": stage} for stage in range(4)},
    "stage 1, accumulated": {"zero_stage": 1, "grad_accum": 2},
    "stage 2, accumulated": {"zero_stage": 2, "grad_accum": 2},
    "stage 1, overlapping": {"zero_stage": 1, "zero": {"overlap_comm": True, "reduce_bucket_size": 3000}},
    "stage 2, small buckets": {"zero_stage": 2, "zero": {"reduce_bucket_size": 5000}},
    "stage 2, double buckets": {"zero_stage": 2, "zero": {"overlap_comm": True, "reduce_bucket_size": 10**6}},
    "stage 2, optimizer offloaded": {"zero_stage": 2, "offload": "optimizer"},
    "stage 3, all offloaded": {"zero_stage": 3, "offload": "all"},
    "stage 3, checkpointed": {"zero_stage": 3, "checkpointing": "full"},
    "stage 3, gathered ahead": {"zero_stage": 3, "grad_accum": 2, "checkpointing": "full", "zero": AHEAD},
    "stage 3, kept": {"zero_stage": 3, "zero": {**AHEAD, "stage3_max_reuse_distance": 20_000}},
}
TIED = {
    "ddp, tied": {"engine": "ddp", "precision": "bf16-mixed", "model": {**SHAPE, "tie_word_embeddings": True}},
}
NARROW = {
    f"stage {stage}, all in bf16": {"zero_stage": stage, "precision": "bf16", "grad_accum": 2, "zero": NOTHING_KEPT}
    for stage in (1, 2, 3)
}


def zero_run(**changes):
    return Run.parse({"model": SHAPE, "seq_len": 128, "engine": "deepspeed", "precision": "fp32", **changes})


@cache
def ranks_of(world_size: int) -> dict[str, list[RankReport]]:
    """What every rank says about every run for so many ranks, in one launch: stages, and on two all others too."""
    numbers = (0, 1, 2, 3) if world_size == 2 else (1, 3)
    stages = {str(n): {"zero_stage": n, "precision": "bf16-master", "zero": NOTHING_KEPT} for n in numbers}
    # DDP under autocast comes first: DeepSpeed's stage 3 changes `torch.nn.functional.linear` for good
    runs = {**TIED, **stages, **FP32, **NARROW} if world_size == 2 else stages
    asked = [zero_run(world_size=world_size, **changes).to_dict() for changes in runs.values()]
    by_rank = launch("labs_utils.workers.zero", {"runs": asked, "steps": STEPS}, world_size)
    return {name: [RankReport.model_validate(rank[place]) for rank in by_rank] for place, name in enumerate(runs)}


@cache
def expected_losses() -> list[float]:
    return [mean(of_ranks) for of_ranks in zip(*plain_losses(zero_run(), 2, STEPS), strict=True)]


@pytest.mark.parametrize("name", FP32)
def test_losses_are_those_of_plain_pytorch(name):
    losses = [mean(of_ranks) for of_ranks in zip(*(rank.losses for rank in ranks_of(2)[name]), strict=True)]
    # fp32 has 24 significant bits; sums are taken in another order
    assert losses == pytest.approx(expected_losses(), rel=1e-6)
    assert losses[0] - losses[-1] > 1e-4  # far above that: it has learned something


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_stages_in_bf16_have_the_same_losses(name):
    expected, found = ranks_of(2)["1"], ranks_of(2)[name]
    assert [rank.losses for rank in found] == [rank.losses for rank in expected]


CASES = [(2, 0), (2, 1), (2, 2), (2, 3), (4, 1), (4, 3)]


@pytest.mark.parametrize(("world_size", "stage"), CASES)
def test_a_rank_holds_what_the_paper_says(world_size, stage):
    share = PARAMETERS // (world_size if stage else 1)
    for rank in ranks_of(world_size)[str(stage)]:
        held = {kind: by_device.get("cpu", 0) for kind, by_device in rank.held_bytes.items()}
        updated = 1 if stage else 21  # one flat tensor, or each of the model's
        assert held["parameters"] == 2 * (share if stage == 3 else PARAMETERS)
        assert held["master_weights"] == 4 * share
        assert held["moments"] == 8 * share + STEP_COUNTER_BYTES * updated
        # at stages 1 and 2 a parameter may lie across two ranks' parts: both hold its gradient
        across = 2 * 2 * LARGEST_PARAMETER if stage in (1, 2) else 0
        assert 2 * share <= held["gradients"] <= 2 * share + across


def test_four_ranks_learn_the_same_at_stages_1_and_3():
    first, third = ([rank.losses for rank in ranks_of(4)[name]] for name in ("1", "3"))
    assert len(first) == 4 and first[0][0] == third[0][0]
    assert first == [pytest.approx(losses, rel=1e-4) for losses in third]  # sums of four in bf16, in another order


@pytest.mark.parametrize(("world_size", "stage"), CASES)
def test_a_lone_rank_is_a_real_one(world_size, stage):
    """Bytes held and communicated; gradients are averaged in other buckets, and Adam has its step counters."""
    numels = [weight.numel() for weight in build_model(zero_run(), torch.device("cpu")).parameters()]
    real, alone = ranks_of(world_size)[str(stage)][0], lone_rank(numels, stage, world_size, grad_accum=1)
    held = {kind: real.held_bytes[kind].get("cpu", 0) for kind in KINDS}
    counters = STEP_COUNTER_BYTES * len(numels)
    assert all(0 <= held[kind] - alone["held"][kind] <= counters for kind in KINDS)
    sent = {name: real.communicated[name]["bytes"] for name in alone["communicated"]}
    assert sent == pytest.approx(alone["communicated"], abs=64)


ON_TWO = [name for name in ("0", "1", "2", "3", *FP32, *NARROW) if "offloaded" not in name]
ESTIMATED = [(2, name) for name in ON_TWO] + [(4, "1"), (4, "3")]


@pytest.mark.parametrize("world_size, name", ESTIMATED)
def test_every_ranks_peaks_are_estimated(world_size, name):
    """All phases, to a few scalars. Gloo copies what it reduces, and under load lets go of that in the next phase."""
    for rank, report in enumerate(ranks_of(world_size)[name]):
        answer = report.answer
        step = distributed_step(answer.run, CPU, rank)
        step("warm ")
        step()
        estimated = read_off(step.tape.timeline, answer.run, "estimate", CPU)
        sent_bytes = PARAMETERS * (4 if answer.run.precision == "fp32" else 2)
        for phase, peak_bytes in phase_peaks(answer).items():
            assert -64 <= peak_bytes - phase_peaks(estimated)[phase] <= sent_bytes + 64


@pytest.mark.parametrize("name", ["2", "stage 2, small buckets"])
def test_without_a_rank_the_one_with_the_largest_peak_is_estimated(name):
    answers = [rank.answer for rank in ranks_of(2)[name]]
    largest_bytes = max(answer.peak_bytes for answer in answers)
    assert estimate(answers[0].run, CPU).peak_bytes == pytest.approx(largest_bytes, rel=1e-3)


def test_autocasts_tied_head_is_measured_inside_ddp():
    answers = [rank.answer for rank in ranks_of(2)["ddp, tied"]]
    assert answers[0].peak_bytes == pytest.approx(estimate(answers[0].run, CPU).peak_bytes, rel=1e-3)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_peak_of_the_optimizer_step_is_as_in_deepspeeds_source(world_size):
    """Stage 1: 2 + 20/N bytes a parameter; stage 3: 22/N and the bucket. Batch and step counters come on top."""
    batch_bytes = 2 * 128 * 8 + 64
    for stage, expected in (
        (1, PARAMETERS * (2 + 20 / world_size)),
        (3, PARAMETERS * 22 / world_size + 2 * BUCKET),
    ):
        for rank in ranks_of(world_size)[str(stage)]:
            peak_bytes = phase_peaks(rank.answer)["optimizer"]
            across = 2 * LARGEST_PARAMETER if stage == 1 else 0
            assert 0 <= peak_bytes - expected - batch_bytes <= across + 100


@pytest.mark.parametrize(("world_size", "stage"), CASES)
def test_the_bytes_communicated_are_counted_by_collective(world_size, stage):
    """Each gradient once; each weight once at stages 1 and 2, and twice at 3 (arXiv 1910.02054, section 7)."""
    sent = ranks_of(world_size)[str(stage)][0].communicated
    total = {name: count["bytes"] for name, count in sent.items()}
    whole = 2 * PARAMETERS
    gradients = total.get("reduce_scatter", 0) if stage == 3 else total["all_reduce"]
    assert 0 <= gradients - whole <= 8  # and whether anything overflowed, and the gradient's norm
    assert total.get("all_gather", 0) == {0: 0, 1: whole, 2: whole, 3: 2 * whole}[stage]


BUILT = {
    (precision, offload): zero_run(
        model={**SHAPE, "num_hidden_layers": 8}, zero_stage=3, world_size=2, precision=precision, offload=offload
    )
    for precision in ("bf16-master", "fp32")
    for offload in ("none", "optimizer", "all")
}


@cache
def built_on_two() -> list[list[dict]]:
    """What both ranks say about building each model of `BUILT`."""
    return launch(BUILDING, {"runs": [run.to_dict() for run in BUILT.values()]}, 2)


@pytest.mark.parametrize(("precision", "offload"), BUILT)
def test_stage_3_never_has_a_whole_model_and_yet_its_weights(precision, offload):
    """A rank has its half of the weights, and of one at a time a copy or two for collectives."""
    run = BUILT[precision, offload]
    weight_bytes, whole = run.model.parameters * precision_of(run).weight.bytes, built(run)
    assert whole["most_bytes"] > weight_bytes
    for rank in built_on_two():
        part = rank[list(BUILT).index((precision, offload))]
        assert 0.5 < part["most_bytes"] / weight_bytes < 0.75
        assert part["weights"] == whole["weights"] and part["buffers"] == whole["buffers"] == ["torch.float32"]


@cache
def measured_together() -> list[Answer]:
    """Three runs that share a launch, of which the second fails."""
    wrong = {"zero_stage": 1, "zero": {"round_robin_gradients": "much"}}
    changes = ({"zero_stage": 2, "precision": "bf16-master", "zero": NOTHING_KEPT}, wrong, {"zero_stage": 3})
    runs = [zero_run(world_size=2, **each) for each in changes]
    answers = list(measure_all(runs, Settings(threads=1, together=3)))
    assert [answer.run for answer in answers] == runs
    return answers


def test_measuring_a_run_gives_the_rank_with_the_largest_peak_and_tells_of_all():
    answer = measured_together()[0]
    assert (answer.outcome, answer.device) == ("ok", "cpu")
    provenance = answer.provenance
    assert answer.peak_bytes == max(provenance["rank_peak_bytes"]) == max(provenance["phase_peak_bytes"].values())
    assert len(provenance["rank_peak_bytes"]) == 2 and answer.step_seconds > 0 and provenance["deepspeed"]
    assert provenance["threads_per_rank"] == 1
    assert provenance["held_bytes"] in [rank.held_bytes for rank in ranks_of(2)["2"]]


def test_a_rank_that_fails_is_an_answer_and_takes_nothing_from_runs_that_share_its_launch():
    answers = measured_together()
    assert [answer.outcome for answer in answers] == ["ok", "unsupported", "ok"]
    reason = answers[1].provenance["reason"]
    assert answers[1].peak_bytes is None and " of 2 failed: ValidationError: round_robin_gradients: Input" in reason


def test_what_no_rank_can_do_here_is_an_answer(monkeypatch):
    monkeypatch.setattr(measure_ranks, "uses_gpus", lambda run: False)
    asked = {
        "unsupported": [{"precision": "bf16"}, {"precision": "fp16-master"}, {"zero_stage": 1, "offload": "all"}],
        "out of memory": [{"model": "llama-3.1-8b", "world_size": 8}, {"world_size": 60000}],
    }
    for outcome, changes in asked.items():
        answers = [measure(zero_run(**each)) for each in changes]
        assert [answer.outcome for answer in answers] == [outcome] * len(answers)
        assert all(answer.provenance["reason"] for answer in answers)


def test_ranks_that_are_told_so_find_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert zero.work({"runs": []}, print) == [] and os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert zero.work({"runs": [], "on_cpu": True}, print) == [] and os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_run_for_other_ranks_is_refused_by_the_worker(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="world_size is 3, and 2 ranks were started"):
        zero.this_run(zero_run(world_size=3).to_dict())
