"""Live points: what a GPU has room for is decided by the estimate, before anything is started."""

import pytest

from labs_utils.answers import live
from labs_utils.device import CONTEXT_BYTES, CPU, H200, find_device
from labs_utils.run import LLAMA_1B, LLAMA_8B, LLAMA_125M, Run

GIB = 2**30
T4 = find_device("T4")


@pytest.fixture
def machine(monkeypatch):
    """A machine with this device, so much of its memory free, and a host that has room for everything."""

    def with_device(device, free_gib, gpus=1):
        monkeypatch.setattr(live, "this_device", lambda: device)
        monkeypatch.setattr(live, "ask_driver", lambda question: free_gib * GIB)
        monkeypatch.setattr(live, "too_large_for_host", lambda run, device: None)
        monkeypatch.setattr(live, "uses_gpus", lambda run: run.world_size <= gpus)

    return with_device


@pytest.mark.parametrize(("free_gib", "model"), [(139, LLAMA_8B), (30, LLAMA_1B), (10, LLAMA_125M), (1, None)])
def test_the_largest_model_with_room_is_taken(machine, free_gib, model):
    machine(H200, free_gib)
    run = live.live_run(seq_len=1024)
    assert (run and run.model) == model and (run is None or run.precision == "bf16")


def test_no_model_above_the_one_that_was_asked_for_is_taken(machine):
    machine(H200, 139)
    assert live.live_run(seq_len=1024, largest=LLAMA_1B).model == LLAMA_1B


@pytest.mark.parametrize(("asked", "taken"), [("bf16", "fp16-mixed"), ("bf16-master", "fp16-master"), ("fp32", "fp32")])
def test_a_gpu_without_bf16_takes_fp16(machine, asked, taken):
    machine(T4, 15)
    engine = "deepspeed" if asked.endswith("master") else "torch"
    assert live.live_run(512, asked, engine=engine).precision == taken


def test_several_ranks_share_the_model_only_where_each_has_a_gpu(machine, capsys):
    shared = {"largest": LLAMA_1B, "zero_stage": 3, "world_size": 2}
    machine(H200, 20, gpus=2)  # of a whole copy 1B takes 25 GiB
    assert live.live_run(2048, "bf16-master", **shared | {"world_size": 1}).model == LLAMA_125M
    machine(H200, 23, gpus=2)
    assert live.live_run(2048, "bf16-master", **shared).model == LLAMA_1B
    machine(H200, 139)
    assert live.live_run(2048, "bf16-master", **shared) is None
    assert "needs a GPU for each of 2 ranks, and PyTorch finds fewer" in capsys.readouterr().out


def test_runs_of_several_ranks_share_one_launch(machine, monkeypatch):
    machine(H200, 139, gpus=2)
    runs = [Run(model=LLAMA_1B, zero_stage=s, world_size=2, precision="bf16-master") for s in (1, 2, 3)]
    started = []
    monkeypatch.setattr(live, "measure_all", lambda *asked: started.append(asked) or [])
    live.measure_live(runs)
    ((tried, settings),) = started
    assert tried == runs and settings.together == len(runs)


def test_a_busy_gpu_has_no_live_run_and_says_why(machine, capsys):
    machine(H200, 1)
    assert live.live_run(seq_len=512) is None
    assert "0.13B at 512 tokens in bf16: it needs" in capsys.readouterr().out


def test_a_machine_without_a_gpu_has_no_live_run(machine, capsys):
    machine(CPU, 0)
    assert live.live_run(seq_len=512) is None and live.measure_live([]) == []
    assert capsys.readouterr().out.startswith("No GPU here")


def test_there_is_room_for_exactly_what_is_needed():
    run = Run(model=LLAMA_1B, seq_len=1024)
    needed = live.estimate(run, H200).provenance["reserved_bytes"] + CONTEXT_BYTES + live.SPARE_BYTES
    assert live.why_no_room(run, H200, needed) is None
    assert "of this GPU are free" in live.why_no_room(run, H200, needed - 1)


def test_a_run_without_room_is_left_out_in_a_sentence_and_nothing_is_started(machine, capsys, monkeypatch):
    machine(H200, 2)
    monkeypatch.setattr(live, "measure_all", lambda runs, settings: [pytest.fail("started") for _ in runs])
    assert live.measure_live([Run(model=LLAMA_8B, seq_len=1024)]) == []
    assert "8B at 1,024 tokens in bf16 is left out: it needs" in capsys.readouterr().out
