"""Offloaded runs of real ranks over gloo: what the host holds, and which Adam works there.

A CPU has one memory: there a rank holds on "the host" what it would hold there with a GPU, and nothing is moved.
"""

import importlib
import os
import re
from functools import cache
from importlib.util import find_spec

import psutil
import pytest
import torch
from helpers import SHAPE, phase_peaks

from labs_utils.allocator import pinned_bytes
from labs_utils.answers.estimate import estimate, step_timeline
from labs_utils.answers.from_timeline import read_off
from labs_utils.answers.host_need import PROCESS_BYTES, filled_bytes, host_need_bytes
from labs_utils.answers.measure import measure
from labs_utils.device import CPU, find_device
from labs_utils.memory_model.host_memory import bytes_of_states, left_pinned_bytes, offloaded_bytes
from labs_utils.memory_model.ranks import distributed_step
from labs_utils.recordings import recorded
from labs_utils.run import LLAMA_8B, ModelShape, Run, RunError
from labs_utils.training.cpu_adam import compiled_cpu_adam, drop_old_locks, telling_line, why_no_cpu_adam
from labs_utils.workers import zero
from labs_utils.workers.launch import launch
from labs_utils.workers.rank_report import RankReport

needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed isn't installed")
PARAMETERS = ModelShape(**SHAPE).parameters
STEP_COUNTER_BYTES = 4
SMALL = {"reduce_bucket_size": 20000}
NOTHING_KEPT = SMALL | {
    "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
}  # fmt: skip
ACCUMULATED_WIDE = {"reduce_bucket_size": 40000, "data_types": {"grad_accum_dtype": "fp32"}}
RUNS = {
    "stage 1": {"zero_stage": 1},
    "stage 2": {"zero_stage": 2},
    "stage 3": {"zero_stage": 3},
    "stage 3, all": {"zero_stage": 3, "offload": "all"},
    "clipped": {"zero_stage": 2, "zero": {"gradient_clipping": 0.5}},
    "fp32": {"zero_stage": 2, "precision": "fp32"},
    "stage 1, accumulated": {"zero_stage": 1, "grad_accum": 2, "zero": SMALL},
    "stage 2, accumulated": {"zero_stage": 2, "grad_accum": 2, "zero": SMALL},
    "stage 2, accumulated in fp32": {"zero_stage": 2, "grad_accum": 3, "zero": ACCUMULATED_WIDE},
    "fp32, accumulated": {"zero_stage": 2, "grad_accum": 2, "zero": ACCUMULATED_WIDE, "precision": "fp32"},
    "stage 2, overlapping": {"zero_stage": 2, "zero": {**SMALL, "overlap_comm": True}},
    "stage 3, nothing kept": {"zero_stage": 3, "zero": NOTHING_KEPT, "checkpointing": "full"},
    "stage 2, all in bf16": {"zero_stage": 2, "precision": "bf16", "grad_accum": 2, "zero": SMALL},
    "stage 2, in bf16 but for sums": {"zero_stage": 2, "precision": "bf16", "grad_accum": 2, "zero": ACCUMULATED_WIDE},
    "stage 3, all, in bf16": {"zero_stage": 3, "offload": "all", "precision": "bf16", "zero": NOTHING_KEPT},
    "stage 3, all, accumulated": {"zero_stage": 3, "offload": "all", "grad_accum": 2, "zero": NOTHING_KEPT},
}
# Gradients that lie across ranks and are accumulated on the host are whole on both.
ACROSS_BYTES = {
    name: nbytes * SHAPE["vocab_size"] * SHAPE["hidden_size"]
    for name, nbytes in {"stage 2, accumulated": 2, "fp32, accumulated": 4}.items()
}

MOVED = [
    ("stage 1", 4, 2),
    ("stage 2", 4, 2),
    ("stage 2, overlapping", 4, 2),
    ("stage 1, accumulated", 4, 2),
    ("stage 2, accumulated", 4 + 2 * 2, 2 + 2),
    ("stage 2, accumulated in fp32", 4, 2),
    ("fp32, accumulated", 4 + 4 * 2, 4 + 4),
    ("stage 3", 4 + 2, 2),
    ("stage 2, all in bf16", 2 + 2 * 2, 2 + 2),
    ("stage 2, in bf16 but for sums", 2, 2),
]


def offloaded_run(**changes):
    common = {"model": SHAPE, "seq_len": 128, "precision": "bf16-master", "world_size": 2, "offload": "optimizer"}
    return Run.parse({**common, "engine": "deepspeed", **changes})


def ranks_of(name: str) -> list[RankReport]:
    """What both ranks say about a run."""
    return [rank[list(RUNS).index(name)] for rank in launched()]


@cache
def launched() -> list[list[RankReport]]:
    """What each rank says about each of `RUNS`, in one launch."""
    asked = [offloaded_run(**changes).to_dict() for changes in RUNS.values()]
    by_rank = launch("labs_utils.workers.zero", {"runs": asked}, 2, threads=1)
    return [[RankReport.model_validate(report) for report in rank] for rank in by_rank]


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("name", RUNS)
def test_the_hosts_bytes_are_known_before_anything_is_allocated(name):
    adam = "DeepSpeedCPUAdam" if "in bf16" in name else "PyTorch's AdamW"  # which counts its steps in a tensor
    expected = offloaded_bytes(offloaded_run(**RUNS[name]), pins=False) + STEP_COUNTER_BYTES * ("PyTorch" in adam)
    for rank in ranks_of(name):
        assert 0 <= rank.host_bytes - expected <= ACROSS_BYTES.get(name, 0)
        assert (rank.host_memory["pageable"], rank.host_memory["pinned"]) == (rank.host_bytes, 0)
        assert rank.threads_per_rank == 1 and rank.cpu_adam == adam


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("name", RUNS)
def test_every_ranks_peak_and_the_hosts_bytes_are_estimated(name):
    """To a few scalars, but that under load gloo lets go of what it has sent late, into the next phase."""
    for rank, report in enumerate(ranks_of(name)):
        answer = report.answer
        estimated = read_off(step_timeline(distributed_step(answer.run, CPU, rank)), answer.run, "estimate", CPU)
        assert answer.provenance["host_bytes"] == estimated.provenance["host_bytes"] == report.host_bytes
        assert 0 <= answer.peak_bytes - estimated.peak_bytes <= 64
        for phase, peak_bytes in phase_peaks(answer).items():
            assert 0 <= peak_bytes - phase_peaks(estimated)[phase] <= 2 * PARAMETERS


def test_pinned_memory_is_rounded_up_on_a_gpus_host_alone():
    for changes in ({"zero_stage": 2}, {"zero_stage": 3}, {"zero_stage": 3, "offload": "all"}):
        for pins in (True, False):
            run = offloaded_run(model="llama-3.1-8b", zero={"offload_optimizer": {"pin_memory": pins}}, **changes)
            told = estimate(run, "H200").provenance["host_bytes"]
            assert told == pytest.approx(offloaded_bytes(run), rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "adamw-loop"}, "optimizer 'adamw-loop' with offload isn't estimated"),
        ({"zero_stage": 3, "zero": {"offload_optimizer": {"ratio": 0.5}}}, "'ratio' in zero key 'offload_optimizer'"),
        ({"zero_stage": 1, "zero": ACCUMULATED_WIDE}, "zero key 'data_types' isn't estimated yet but"),
        ({"zero": {"reduce_bucket_sizes": 10**6}}, "is 'reduce_bucket_size' meant?"),
    ],
)
def test_what_isnt_estimated_has_a_reason(changes, words):
    answer = estimate(offloaded_run(**{"zero_stage": 2, **changes}), CPU)
    assert answer.outcome == "unsupported" and words in answer.provenance["reason"]


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ({"gradient_clipping": "much"}, "'gradient_clipping' must be a number from 0 on, not 'much'"),
        ({"sub_group_size": 0}, "'sub_group_size' must be a whole number of elements, at least 1, not '0'"),
        ({"reduce_bucket_size": None}, "'reduce_bucket_size' must be a whole number of elements"),
        ({"overlap_comm": 1}, "'overlap_comm' must be true or false, not '1'"),
        ({"data_types": "fp32"}, "'data_types' must be an object with 'grad_accum_dtype'"),
        ({"data_types": {"grad_accum_dtype": "fp7"}}, "'data_types' must be an object with 'grad_accum_dtype'"),
        ({"offload_optimizer": {"pin_memory": "yes"}}, "'pin_memory' in zero key 'offload_optimizer' must be true or"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_estimate_and_measure_alike(zero, words):
    run = offloaded_run(zero_stage=3, zero=zero)
    for answer in (estimate(run, "H200"), measure(run)):
        assert answer.outcome == "unsupported" and words in answer.provenance["reason"]


@pytest.mark.slow
@needs_deepspeed
def test_a_step_is_taken_apart():
    for name in ("stage 2", "clipped"):
        split = ranks_of(name)[0].split_seconds
        assert 0 < split["cpu_adam"] < split["optimizer"]
        assert {"forward", "backward", "clipping", "gradient_transfer", "parameter_transfer"} < split.keys()


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize(("name", "down", "up"), MOVED)
def test_what_crosses_is_counted(name, down, up):
    """In bytes for each of a rank's parameters; gradients that lie across ranks are accumulated whole on both."""
    part = PARAMETERS // 2
    across = 2 * ACROSS_BYTES.get(name, 0)
    for rank in ranks_of(name):
        assert 0 <= rank.moved_bytes["device_to_host"] - down * part <= across
        assert 0 <= rank.moved_bytes["host_to_device"] - up * part <= across


def test_pinned_memory_comes_in_powers_of_two():
    assert [pinned_bytes(nbytes) for nbytes in (1, 2, 3, 2**30, 2**30 + 1)] == [1, 2, 4, 2**30, 2**31]
    run = offloaded_run(model="llama-3.1-8b", zero_stage=2)
    parameters, largest = LLAMA_8B.parameters // 2, 2 * LLAMA_8B.embedding_parameters
    assert offloaded_bytes(run, pins=False) == 18 * parameters + largest
    unpinned = run.replace(zero={"offload_optimizer": {"pin_memory": False}})
    assert offloaded_bytes(unpinned) == offloaded_bytes(run, pins=False)
    assert offloaded_bytes(run) == 2 * 2**34 + 2**33 + 8 * parameters + 2**30  # 16.06e9, 8.03e9 and 1.05e9 bytes


def test_pinned_blocks_of_the_weights_stay_as_recorded_on_gpus():
    """In launches of one run; the allocator has a few bytes more."""
    rows = [row for row in recorded() if row.run.offload == "all" and row.run.model == LLAMA_8B]
    for row in rows:
        told = row.provenance["host_memory"]
        assert 0 <= told["allocated"] - told["pinned"] - left_pinned_bytes(row.run) < 64
        needed = host_need_bytes(row.run, find_device("H200")) / row.run.world_size
        assert told["resident"] == pytest.approx(needed + PROCESS_BYTES, rel=0.02)
    assert {row.run.world_size for row in rows} == {1, 2}


@pytest.mark.parametrize("gpus", [False, True])
def test_a_host_that_is_too_small_is_said_before_anything_is_allocated(monkeypatch, gpus):
    device, measuring = find_device("H200") if gpus else CPU, importlib.import_module("labs_utils.answers.measure")
    monkeypatch.setattr(measuring, "uses_gpus", lambda run: gpus)
    monkeypatch.setattr(measuring, "this_device", lambda: device)
    memory = psutil.virtual_memory()._replace(available=100 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    answer = measure(offloaded_run(model="llama-3.1-8b", zero_stage=2))
    assert answer.outcome == "out of memory"
    reason = answer.provenance["reason"]
    told = r"GiB of host memory, and 100.0 GiB are free; it was not started; with (\d+) of its 32 layers, "
    layers = int(re.search(told, reason)[1])
    fitting, not_fitting = (offloaded_run(model=of_layers(count), zero_stage=2) for count in (layers, layers + 1))
    assert host_need_bytes(fitting, device) < 100 * 2**30 <= host_need_bytes(not_fitting, device)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "bf16-master", "fp32"])
def test_states_alone_are_not_taken_for_more_than_is_estimated(precision, stage):
    run = offloaded_run(model="llama-3.2-1b", offload="none", precision=precision, zero_stage=stage, zero=SMALL)
    needed = run.world_size * filled_bytes(estimate(run, CPU))
    assert 0.5 * needed < bytes_of_states(run) < needed


@pytest.mark.parametrize(("gib", "stage", "offload"), [(8, 3, "all"), (15, 3, "optimizer"), (24, 2, "optimizer")])
def test_a_gpu_that_a_step_fits_is_large_enough_to_begin(gib, stage, offload):
    """8B: at stage 3 the weights are never whole there; at stage 2 they are laid end to end where there is room."""
    device = find_device("V100-32GB").model_copy(update={"memory_bytes": gib * 2**30})
    run = offloaded_run(model="llama-3.1-8b", seq_len=512, zero_stage=stage, world_size=4, offload=offload, zero=SMALL)
    assert estimate(run.replace(precision="fp16-master", checkpointing="full"), device).outcome == "ok"


@pytest.mark.parametrize(("ranks", "gib"), [(1, 29.9), (2, 22.4)])
def test_a_gpu_too_small_for_the_copy_that_masters_are_made_of_is_named_as_that(ranks, gib):
    """Stage 2 clones a rank's part of the weights beside all of them: for one rank twice the model, as recorded."""
    device = find_device("V100-32GB").model_copy(update={"memory_bytes": 23 * 2**30})
    run = offloaded_run(model="llama-3.1-8b", seq_len=512, zero_stage=2, world_size=ranks, zero=SMALL)
    answer = estimate(run.replace(precision="bf16", checkpointing="full"), device)
    assert answer.outcome == "out of memory" and answer.peak_bytes < 21.5 * 2**30
    assert f"but setting up takes {gib} on V100-32GB" in answer.provenance["reason"]


def test_setting_up_takes_what_was_recorded():
    rows = [row for row in recorded() if row.run.offload == "optimizer" and row.run.zero_stage == 2]
    rows = [row for row in rows if "set_up_peak_bytes" in row.provenance]
    for row in rows:
        step = distributed_step(row.run, find_device("H200"))
        assert step.tape.timeline.most_bytes() == pytest.approx(row.provenance["set_up_peak_bytes"], rel=1e-3)
    assert rows


def test_one_rank_reserves_what_was_recorded():
    """Its largest block is the one in which the weights were cloned."""
    rows = [row for row in recorded() if row.run.offload == "optimizer" and row.run.zero_stage == 2]
    rows = [row for row in rows if row.run.world_size == 1]
    for row in rows:
        reserved_bytes = estimate(row.run, find_device("H200")).provenance["reserved_bytes"]
        assert reserved_bytes == pytest.approx(row.provenance["reserved_bytes"], rel=0.005)
    assert rows


def of_layers(count):
    return {**LLAMA_8B.model_dump(), "num_hidden_layers": count}


def test_activations_count_on_a_cpu_and_buckets_that_stay_empty_do_not():
    short = offloaded_run(zero_stage=2, zero={})
    long = short.replace(seq_len=4096, micro_batch=8)
    needed = [host_need_bytes(run, CPU) for run in (short, long)]
    assert needed[0] < 2 * 10**9 < estimate(short, CPU).peak_bytes * 2  # two buckets of 1 GB, for a tiny model
    assert needed[1] - needed[0] > 0.9 * 2 * (estimate(long, CPU).peak_bytes - estimate(short, CPU).peak_bytes)


def test_an_interrupted_compilation_is_forgotten_and_one_under_way_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, new = (tmp_path / name / "cpu_adam" / "lock" for name in ("old", "new"))
    for lock in (old, new):
        lock.parent.mkdir(parents=True)
        lock.touch()
    os.utime(old, (0, 0))
    drop_old_locks()
    assert not old.exists() and new.exists()


@pytest.mark.slow
@needs_deepspeed
def test_deepspeeds_cpu_adam_is_adamw(monkeypatch):
    """It is compiled once a machine, for about a minute."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # to which the compiler's helpers are added
    assert why_no_cpu_adam() is None
    torch.manual_seed(0)
    one = torch.nn.Parameter(torch.randn(1000))
    other = torch.nn.Parameter(one.detach().clone())
    optimizers = compiled_cpu_adam([one]), torch.optim.AdamW([other], lr=1e-6)
    for _ in range(3):
        one.grad = torch.randn(1000)
        other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_what_only_deepspeeds_adam_can_do_is_refused_where_it_cant_be_compiled(monkeypatch):
    monkeypatch.setattr(zero, "why_no_cpu_adam", lambda: "no compiler")
    with pytest.raises(RunError, match="offload in precision 'bf16' needs DeepSpeed's CPU Adam, .* no compiler"):
        zero.choose_cpu_adam(offloaded_run(zero_stage=2, precision="bf16"), torch.device("cpu"), lambda doing: None)


def test_a_failed_compilation_is_named_by_the_line_that_says_why():
    words = (
        "Error building extension 'cpu_adam': [1/3] c++ -MMD -MF cpu_adam.o\n/bin/sh: 1: c++: not found\nninja: stopped"
    )
    assert telling_line(words) == "/bin/sh: 1: c++: not found"
    assert telling_line("no ninja") == "no ninja" and telling_line("") == ""
