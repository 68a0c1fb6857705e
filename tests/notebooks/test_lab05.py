"""Lab 05's cells do what its text says."""

import statistics
from functools import cache

import pytest
from lab_cells import after

from labs_utils.answers.estimate import estimate
from labs_utils.device import H200
from labs_utils.recordings import recall, recorded
from labs_utils.time_model.offload import offload_seconds, recorded_host_rates, recorded_threads


def lab_after(*cell_ids):
    """The namespace after these cells of the notebook."""
    return after("lab05", *cell_ids, GIB=2**30)


@cache
def lab_after_launch():
    """The notebook's own launch with two ranks, and what its cells make of it."""
    return lab_after(*"where-runs where-all-runs where-launch where-table moved-table".split())


@pytest.mark.slow
def test_a_rank_keeps_weights_on_the_gpu_and_eighteen_bytes_on_the_host():
    pytest.importorskip("deepspeed")
    lab = lab_after_launch()
    staging = 2 * lab["TINY"].embedding_parameters / lab["PSI"]  # as large as the largest parameter
    assert lab["on_device"]("optimizer", "optimizer") == pytest.approx(2 + staging, abs=0.01)
    assert lab["on_host"]("optimizer") == pytest.approx(18 + 2 * staging, abs=0.01)
    assert lab["on_host"]("all") == pytest.approx(20, abs=0.01) and lab["on_host"]("stage 2") == 0
    assert lab["on_device"]("all", "optimizer") < 0.1 < 1 < lab["on_device"]("stage 3", "optimizer")


@pytest.mark.slow
def test_deepspeed_moves_six_bytes_and_more_when_stage_2_accumulates():
    pytest.importorskip("deepspeed")
    moved = lab_after_launch()["moved"]
    exact = ("optimizer", "stage 1, two micro-steps", "stage 2, two micro-steps in fp32")
    assert [moved(name) for name in exact] == [pytest.approx([4, 2], abs=0.01)] * 3
    down, up = moved("stage 2, two micro-steps")
    assert 8 <= down < 8.2 and 4 <= up < 4.1


def test_threads_are_worth_what_the_lab_says():
    one, all_of_them = recorded_host_rates(H200, 1), recorded_host_rates(H200)
    assert recorded_threads(H200) == [1, 2, 4, 8, 16]
    assert 3 < all_of_them.adam / one.adam < 5  # "several times as fast"
    assert all_of_them.down > 4 * recorded_host_rates(H200, pinned=False).down


def test_each_recorded_part_of_a_step_is_about_what_its_rate_says():
    """What crosses within a tenth: copies of a step are up to 8 % slower than those of the benchmark.

    Adam over the same four billion parameters took 1.17 to 1.51 s in these rows on two GPUs, and 0.92 to 1.16 s on one:
    so its rate is held to their median.
    """
    rows = [row for row in recorded() if row.run.offload == "optimizer" and row.outcome == "ok"]
    rows = [row for row in rows if row.run.zero_stage < 3 and row.provenance["threads_per_rank"] == 16]
    assert len(rows) >= 12
    adam = []
    for row in rows:
        pinned = row.run.zero.get("offload_optimizer", {}).get("pin_memory", True)
        estimated = offload_seconds(row.run, recorded_host_rates(H200, 16, pinned, row.run.world_size))
        split = row.provenance["split_seconds"]
        crossing = [sum(told[f"{what}_transfer"] for what in ("gradient", "parameter")) for told in (estimated, split)]
        assert crossing[0] == pytest.approx(crossing[1], rel=0.1)
        adam.append(estimated["cpu_adam"] / split["cpu_adam"])
    assert statistics.median(adam) == pytest.approx(1, abs=0.15) and min(adam) > 0.75 and max(adam) < 1.3


def test_the_gpu_waits_most_of_the_time_and_mostly_for_the_cpu():
    lab = lab_after("link-rates", "link-seconds", "step-terms")
    terms, plain = lab["terms"], lab["PLAIN"]
    on_link = terms["gradient_transfer"] + terms["parameter_transfer"]
    assert sum(terms.values()) > plain and terms["cpu_adam"] + terms["rounding"] > 2 * on_link
    assert lab["on_link"](lab["PINNED"]) < plain < lab["on_link"](lab["PAGEABLE"])


@pytest.mark.slow
def test_the_lectures_gpus_needed_no_more_than_the_optimizer_offloaded():
    lab = lab_after("link-rates", "link-seconds", "lecture-memory")
    peaks = {offload: lab["on_v100"](offload, "none") for offload in ("none", "optimizer", "all")}
    assert [answer.outcome for answer in peaks.values()] == ["out of memory", "ok", "ok"]
    assert lab["on_v100"]("none", "full").outcome == "out of memory"
    assert peaks["all"].peak_bytes < 15e9


def lab_after_changes(*more):
    rates = "link-rates link-seconds step-terms lecture-adam".split()
    changes = "recorded-with change-list change-seconds change-without change-table".split()
    curves = "tokens-times tokens-figure share-curves".split()
    return lab_after(*rates, *changes, *curves, *more)


@pytest.mark.slow
def test_each_change_costs_what_the_text_says():
    lab = lab_after_changes()
    times = {name: lab["change_row"](name, run)[4] for name, run in lab["changes"].items()}
    assert times["one thread"] > times["pageable memory"] > times["gradients clipped"]
    assert times["gradients clipped"] > times["sixteen threads, pinned"] > times["8 micro-steps"]
    took = {name: lab["change_row"](name, run)[3] for name, run in lab["changes"].items()}
    assert took["stage 3"] > took["stage 3, everything"] > took["sixteen threads, pinned"]


@pytest.mark.slow
def test_sums_on_the_host_have_a_floor_and_sums_on_the_gpu_have_none():
    lab = lab_after_changes("share-reveal")

    def times(n, zero, kind):
        return lab["times"](lab["big"](grad_accum=n, zero=zero), kind)

    assert times(1000, {}, 0) > 1.3 > 1.02 > times(1000, lab["FP32"], 0)
    assert 8 < lab["fewest"] < 20
    for zero in ({}, lab["FP32"]):  # "Recorded points lie above their curves"
        points = {n: times(n, zero, 1) for n in lab["COUNTS"]}
        assert sum(point is not None for point in points.values()) >= 2
        assert all(point > times(n, zero, 0) for n, point in points.items() if point)


@pytest.mark.slow
def test_the_number_of_tokens_counts_most_and_65536_are_not_enough():
    lab = lab_after_changes("newer-runs")
    big, some, fp32 = lab["big"], lab["some"], lab["FP32"]
    pair = big(grad_accum=8, zero=fp32), big(micro_batch=8)
    apart, at_once = (lab["times"](run, 1) for run in pair)
    assert apart == pytest.approx(at_once, rel=0.01)
    more = [lab["seconds_of"](run)[1] - lab["seconds_of"](lab["without"](run))[1] for run in pair]
    assert more[0] > more[1]  # "Side by side adds fewer seconds"
    many = some(grad_accum=8, micro_batch=4, zero=fp32)
    assert many.micro_batch * many.grad_accum * many.seq_len == 131072
    assert lab["times"](many, 1) <= 1.25
    for run in (many.replace(micro_batch=2), big(grad_accum=16, zero=fp32)):
        assert run.micro_batch * run.grad_accum * run.seq_len == 65536 and lab["times"](run, 1) > 1.25
    assert lab["times"](run, 0) <= 1.25  # "though the estimate has one there"


def test_a_step_has_one_estimated_factor_in_all_sections():
    lab = lab_after_changes()
    assert lab["STEP"] / lab["PLAIN"] == pytest.approx(lab["times"](lab["big"](), 0))
    assert lab["times"](lab["big"](), 1) > lab["STEP"] / lab["PLAIN"]  # "Recorded by recorded ... is more"
    assert 0 < lab["PLAIN"] / lab["COMPUTE"] - 1 < 0.15  # "the table's last row is only a little longer"


def test_adam_that_works_explains_hardly_anything_of_the_lectures_step():
    lab = lab_after("link-rates", "lecture-adam")
    assert lab["took"]["16 threads"] < lab["took"]["one thread"] < 0.05 * 74 < 0.4 * 74 < max(lab["took"].values())


@pytest.mark.slow
def test_bf16_states_halve_adams_time_and_superoffload_takes_longer():
    lab = lab_after_changes("newer-runs", "newer-table")
    rows = {row[0]: row[1:] for row in lab["rows"]}
    host, _, step, adam, _ = rows["stage 2, all in bf16"]
    assert adam == pytest.approx(rows["stage 2"][3] / 2, rel=0.03) and step < rows["stage 2"][2]
    assert host < 0.6 * rows["stage 2"][0]
    assert rows["stage 3, SuperOffload"][2] > 1.5 * rows["stage 3"][2]
    assert rows["stage 3, SuperOffload"][:2] == ("none", "none")


def test_recorded_steps_of_8b_come_close_to_the_roofline():
    run = lab_after("link-rates", "link-seconds")["big"]()
    (row,) = (row for row in recall(run, H200) if row.provenance["threads_per_rank"] == 16)
    guess = estimate(run, H200)
    assert 0.9 < guess.step_seconds / row.step_seconds < 1  # a roofline is not beaten here
    assert guess.provenance["host_bytes"] == row.provenance["host_bytes"]


def test_one_gpu_holds_8b_in_less_than_half_of_15_gb_when_everything_is_offloaded():
    cells = "step-terms step-schedule recorded-with step-recorded step-bytes one-gpu"
    lab = lab_after("link-rates", "link-seconds", *cells.split())
    (row,) = lab["recorded_with"](lab["alone"])
    assert row.peak_bytes < 15e9 / 2 and row.run.world_size == 1
