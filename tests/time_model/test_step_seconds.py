"""Estimated seconds a step: against every recorded run, and against what must hold whatever the rates are."""

import statistics

import pytest
import torch
from helpers import SHAPE, VARIANTS
from torch.utils.flop_counter import FlopCounterMode

from labs_utils.answers.estimate import estimate
from labs_utils.device import CPU, H200, find_device
from labs_utils.doctor import operator_rates as step_rates
from labs_utils.recordings import benchmarks, recorded
from labs_utils.run import LLAMA_1B, LLAMA_8B, TINY, Run
from labs_utils.time_model import rates as device_rates
from labs_utils.time_model.engines import engine_work
from labs_utils.time_model.offload import host_lines, recorded_host_rates
from labs_utils.time_model.operators import plain_step
from labs_utils.time_model.rates import MissingRate, between, rates_of
from labs_utils.time_model.step import TERMS, Clock, Task, step_seconds
from labs_utils.time_model.subjects import host_runs
from labs_utils.training.step import TrainingStep

MOST_MEDIAN = 0.10  # the target is 0.20
ZERO = {"engine": "deepspeed", "precision": "bf16-master", "world_size": 2}


@pytest.fixture(scope="module")
def errors():
    """(run, relative error) of every recorded run that was timed."""
    rows = [row for row in recorded() if row.device == "H200" and row.outcome == "ok" and row.step_seconds]
    pairs = ((row, step_seconds(row.run, H200, row.provenance.get("threads_per_rank"))) for row in rows)
    return [(row.run, sum(terms.values()) / row.step_seconds - 1) for row, terms in pairs if terms is not None]


def median_size(errors):
    return statistics.median(abs(error) for error in errors)


@pytest.mark.slow
def test_the_median_error_is_within_the_target_over_all_recorded_runs(errors):
    timed = [row for row in recorded() if row.outcome == "ok" and row.step_seconds]
    assert len(timed) >= len(errors) > 0.95 * len(timed) > 150  # Adam in 8 bits has no rate yet
    assert median_size(error for _, error in errors) <= MOST_MEDIAN


@pytest.mark.slow
def test_the_median_error_is_within_the_target_over_runs_of_ddp_and_deepspeed(errors):
    distributed = [error for run, error in errors if run.engine != "torch"]
    assert len(distributed) > 50 and median_size(distributed) <= MOST_MEDIAN


@pytest.mark.slow
def test_runs_that_offload_are_within_the_target(errors):
    offloaded = [error for run, error in errors if run.offload != "none"]
    assert len(offloaded) > 15 and median_size(offloaded) <= 2 * MOST_MEDIAN


@pytest.mark.parametrize(("precision", "moved_bytes"), [("fp32", 0), ("bf16", 4), ("bf16-master", 12)])
def test_gradients_are_copied_only_to_masters_of_another_type(precision, moved_bytes):
    """Of a rank's part, weights come back from masters apart from them; each copy reads and writes."""
    run = Run.parse({**ZERO, "zero_stage": 3, "precision": precision})
    assert engine_work(run).step_bytes == moved_bytes * run.model.parameters / run.world_size


def test_offload_adds_what_the_host_does_while_the_gpu_waits():
    run = Run.parse({**ZERO, "model": "llama-3.1-8b", "zero_stage": 2, "checkpointing": "full"})
    plain, offloaded = (step_seconds(run.replace(offload=offload), H200) for offload in ("none", "optimizer"))
    assert {term for term in TERMS if plain[term] != offloaded[term]} == {"optimizer", "copies"}
    assert offloaded["optimizer"] > 10 * plain["optimizer"] and offloaded["copies"] > plain["copies"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
def test_no_stage_is_far_off(errors, stage):
    found = [error for run, error in errors if run.engine == "deepspeed" and run.zero_stage == stage]
    assert found and median_size(found) <= 2 * MOST_MEDIAN


def total(run, device=H200):
    return sum(step_seconds(run, device).values())


@pytest.mark.parametrize(
    "run", [Run(), Run(model=LLAMA_1B, checkpointing="full"), Run.parse({"world_size": 2, **ZERO})]
)
def test_terms_are_named_and_sum_to_the_estimate(run):
    answer = estimate(run, H200)
    terms = answer.provenance["step_seconds_terms"]
    assert tuple(terms) == TERMS and min(terms.values()) >= 0
    assert answer.step_seconds == pytest.approx(sum(terms.values())) and answer.step_seconds > 0


@pytest.mark.parametrize(
    "less, more",
    [
        ({"seq_len": 2048}, {"seq_len": 4096}),
        ({"micro_batch": 1}, {"micro_batch": 3}),
        ({"grad_accum": 1}, {"grad_accum": 2}),
        ({"checkpointing": "none"}, {"checkpointing": "full"}),
        ({"checkpointing": "none"}, {"checkpointing": "offload"}),
        ({"optimizer": "none"}, {"optimizer": "adamw"}),
        ({"precision": "bf16"}, {"precision": "fp32"}),
        ({}, {**ZERO, "zero_stage": 2}),
        ({**ZERO, "zero_stage": 1}, {**ZERO, "zero_stage": 3}),
    ],
)
def test_more_work_is_not_faster(less, more):
    run = {"model": "llama-3.2-1b", "seq_len": 2048}
    assert total(Run.parse(run | less)) < total(Run.parse(run | more))


@pytest.mark.parametrize("peak", ["link_bytes_per_s", "hbm_bytes_per_s", "bf16_flop_per_s"])
@pytest.mark.parametrize("stage", range(4))
def test_a_slower_device_is_not_faster(stage, peak):
    slower = H200.model_copy(update={"name": "slower", peak: getattr(H200, peak) / 50})
    run = Run.parse({"model": LLAMA_8B, "checkpointing": "full", **ZERO, "zero_stage": stage})
    assert total(run, slower) > total(run)


def test_a_single_rank_has_nothing_to_wait_for():
    alone = Run.parse({**ZERO, "zero_stage": 2, "world_size": 1})
    assert step_seconds(alone, H200)["communication"] == 0
    assert step_seconds(alone.replace(world_size=2), H200)["communication"] > 0


@pytest.mark.parametrize("name", ["T4", "V100-32GB", "A100-80GB", "H100"])
def test_a_device_that_nothing_was_recorded_on_answers_by_its_data_sheet(name):
    run = Run(model=TINY, precision="fp32" if name in ("T4", "V100-32GB") else "bf16", attention="eager", seq_len=2048)
    assert total(run, find_device(name)) > total(run)
    assert estimate(run, name).step_seconds > 0


def test_no_seconds_where_they_are_not_known():
    assert step_seconds(Run(), CPU) is None and estimate(Run(), CPU).step_seconds is None
    assert step_seconds(Run(), H200.model_copy(update={"name": "unknown", "hbm_bytes_per_s": None})) is None
    offloaded = {**ZERO, "zero_stage": 3, "offload": "optimizer", "zero": {"offload_optimizer": {"ratio": 0.5}}}
    assert step_seconds(Run.parse(offloaded), H200) is None
    assert estimate(Run(model=LLAMA_8B, seq_len=2**17), H200).step_seconds is None  # out of memory


def test_no_seconds_where_a_rate_is_missing(monkeypatch):
    monkeypatch.setattr(device_rates.DeviceRates, "optimizer_seconds", lambda *sizes: raise_missing())
    assert step_seconds(Run(optimizer="sgd"), H200) is None and step_seconds(Run(optimizer="none"), H200)


def raise_missing():
    raise MissingRate("optimizer")


def test_a_gpu_that_is_done_waits_and_a_host_that_is_ahead_does_not_tell():
    clock = Clock()
    clock.play([Task("memory", 1.0, 0.5), Task("compute", 1.0, 5.0), Task("memory", 1.0, 1.0)])
    assert (clock.host, clock.device) == (3.0, 8.0)
    assert clock.terms() == dict.fromkeys(TERMS, 0.0) | {"compute": 5.0, "memory": 1.5, "host": 1.5}
    clock.wait()
    clock.play([Task("optimizer", 1.0, 1.0)])
    assert clock.elapsed == 10.0 and clock.terms()["host"] == 2.5
    clock.host = 0.0
    clock.add("copies", 0.0)
    assert clock.host == 0.0  # nothing to wait for
    clock.add("copies", 2.0)
    assert clock.host == clock.device == 12.0 and clock.terms()["copies"] == 2.0


def test_playing_again_takes_as_long_as_the_second_time():
    tasks = [Task("compute", 1.0, 2.0), Task("memory", 0.1, 0.1)]
    one, many = Clock(), Clock()
    many.play(tasks)
    many.repeat(tasks, 3)
    for _ in range(4):
        one.play(tasks)
    assert many.elapsed == pytest.approx(one.elapsed) and many.terms() == pytest.approx(one.terms())


def test_rates_between_sizes_lie_on_a_line_of_logarithms():
    points = [(10.0, 1.0), (1000.0, 100.0)]
    assert between(points, 100) == pytest.approx(10) and between(points, 1) == 1 and between(points, 1e6) == 100
    assert between(points, 1000.0) == pytest.approx(100) and between(points, 10.0) == 1


def test_collectives_of_other_numbers_of_ranks_move_a_rings_share():
    rates = rates_of(H200)
    two, eight = (rates.collective_seconds("all_gather", 2**30, ranks, 2**30) for ranks in (2, 8))
    assert two < eight < 2 * two
    pieces = rates.collective_seconds("all_gather", 2**30, 2, 2**16)
    assert pieces > 10 * two


def test_products_of_layers_are_as_fast_as_square_ones_of_as_many_operations():
    rates, lines = rates_of(H200), [line for line in benchmarks(H200) if line.subject.startswith("linear bf16")]
    shares = []
    for shape, value in ((line.shape, line.value) for line in lines):
        flops = 2 * shape["m"] * shape["n"] * shape["k"]
        shares.append(flops / rates.product_seconds(flops, "bf16") / value["median"])
    assert len(shares) > 10 and statistics.median(shares) == pytest.approx(1, abs=0.1)
    assert 0.8 < min(shares) and max(shares) < 1.35


# `eager` names each product as an operator that torch's counter knows; it counts fused attention without its mask.
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", [SHAPE, {**SHAPE, "tie_word_embeddings": True, "num_key_value_heads": 4}])
def test_operations_are_those_that_torch_counts(model, checkpointing):
    run = Run.parse(
        {"model": model, "attention": "eager", "seq_len": 48, "micro_batch": 2, "checkpointing": checkpointing}
    )
    step = TrainingStep(run, "cpu")
    with FlopCounterMode(display=False) as counter:
        step.micro_step(lambda phase: None)
    work, _ = plain_step(run, CPU)
    assert sum(each.flops for each in work) == counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_its_work_in_three_phases(variant):
    run = Run.parse({"model": SHAPE, "seq_len": 64, **VARIANTS[variant]})
    work, kept_bytes = plain_step(run, CPU)
    checkpointed = run.checkpointing not in ("none", "offload")
    assert {each.phase for each in work} == {"forward", "backward", *(["recompute"] * checkpointed)}
    assert (kept_bytes > 0) == (run.checkpointing == "offload") and all(each.nbytes >= 0 for each in work)


def test_what_is_measured_has_the_names_that_are_asked_for():
    assert set(host_runs()) >= {"", ", two micro-steps", ", full checkpointing", ", selective checkpointing"}
    assert torch.cuda.is_available() or list(step_rates.sections("cpu", 0.0, 0)) == ["the host's work for all ranks"]


def test_the_hosts_rates_are_those_of_as_many_ranks_or_of_the_nearest():
    ranks = {asked: {line.shape["ranks"] for line in host_lines(H200, asked)} for asked in (None, 1, 2, 8)}
    assert ranks == {None: {2}, 1: {1}, 2: {2}, 8: {2}}
    one, two = (recorded_host_rates(H200, 16, ranks=count) for count in (1, 2))
    assert 1.3 < one.adam / two.adam < 2  # they share the host's memory
    assert host_lines("no such device", 1) == []
