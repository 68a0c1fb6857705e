"""The dry run against real runs, as torch.profiler sees them, and the 8B model on any machine."""

import json
import subprocess
import sys
import time

import pytest
import torch
from helpers import RNG_STATE_BYTES, VARIANT_PARAMETERS, VARIANTS, dry_variant, profiled_peak_bytes, small_run
from transformers import masking_utils

from labs_utils.answers.dry_run import NoMemoryMode, dry_run, dry_run_timeline
from labs_utils.device import CPU
from labs_utils.run import LLAMA_8B, PRESETS, Run
from labs_utils.training.step import build_model

SCALARS_BYTES = 64  # 0-dim tensors that a dispatcher doesn't see or that only data makes: mask fill values, loss scale
PEAK_MIB = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def checkpointed_layers(run):
    every = 1 if run.checkpointing.startswith("keep-") else run.checkpoint_every
    return len(range(0, run.model.num_hidden_layers, every)) if every else 0


# Kernel scratch would show here: at these sizes the CPU's kernels take none. What torch.utils.checkpoint keeps besides
# tensors of the model is known: the state of the CPU's random numbers, for each layer that it hasn't recomputed yet.
# It lies on the host whatever the device, so the dry run leaves it out.
# What is offloaded on a CPU is memory to the profiler like any other: the recorded runs are the witness of that.
@pytest.mark.parametrize("variant", [one for one in VARIANT_PARAMETERS if one.values[0] != "offload"])
def test_the_dry_run_is_the_peak_that_the_profiler_sees_in_a_real_step(variant):
    run = small_run(**VARIANTS[variant])
    unseen_bytes = profiled_peak_bytes(run) - dry_variant(variant).peak_bytes
    states = round(unseen_bytes / RNG_STATE_BYTES)
    assert unseen_bytes == pytest.approx(states * RNG_STATE_BYTES, abs=SCALARS_BYTES)
    assert 0 <= states <= checkpointed_layers(run)


@pytest.mark.parametrize("name", PRESETS)
def test_transformers_builds_as_many_parameters_as_a_preset_has(name):
    with NoMemoryMode():
        model = build_model(Run(model=PRESETS[name], seq_len=8), torch.device("cpu"))
    assert sum(parameter.numel() for parameter in model.parameters()) == PRESETS[name].parameters


def test_a_dry_run_leaves_torch_and_transformers_as_they_were():
    before = masking_utils.find_packed_sequence_indices
    dry_run(small_run(), CPU)
    assert masking_utils.find_packed_sequence_indices is before
    assert torch.ones(3).sum().item() == 3


def test_of_many_micro_steps_two_are_run():
    few, many = (dry_run_timeline(small_run(grad_accum=count)) for count in (2, 9))
    assert len(few.events) == len(many.events)
    assert few.peak().live_bytes == many.peak().live_bytes


@pytest.mark.parametrize("changes", [{"layer_kernels": "liger"}, {"loss_kernel": "liger"}], ids=str)
def test_ligers_kernels_are_not_made_of_torch_operators(changes):
    answer = dry_run(small_run(**changes), "H200")
    assert answer.outcome == "unsupported" and "estimate covers them" in answer.provenance["reason"]


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpa-cudnn"])
def test_a_kernel_that_a_cpu_lacks_is_stood_for_and_the_answer_says_so(attention):
    answer, flash = (dry_run(small_run(attention=name), "H200") for name in (attention, "sdpa"))
    assert answer.peak_bytes == flash.peak_bytes
    assert repr(attention) in answer.provenance["note"] and "note" not in flash.provenance


def test_tensors_too_large_for_any_device_are_an_answer():
    answer = dry_run(Run(model=LLAMA_8B, seq_len=2**24, micro_batch=2**24, attention="eager"), CPU)
    assert answer.outcome == "unsupported"
    assert answer.provenance["reason"].startswith("torch refused the run: ")


def test_a_gpu_adds_its_workspaces_and_nothing_else_that_a_cpu_lacks():
    on_cpu, on_gpu = (dry_run(small_run(), device) for device in ("cpu", "H200"))
    assert on_cpu.parts["workspace"] == 0
    assert on_gpu.parts["workspace"] >= 2 * 32 * 2**20
    assert on_gpu.parts["parameters"] == pytest.approx(on_cpu.parts["parameters"], rel=0.05)  # 512-byte blocks


@pytest.mark.slow
@pytest.mark.parametrize("seq_len", [4096, 131072])
def test_the_8b_model_is_dry_run_in_less_than_2_gb(seq_len, tmp_path, capsys):
    runs = tmp_path / "runs.jsonl"
    runs.write_text(json.dumps({"model": "llama-3.1-8b", "seq_len": seq_len, "checkpointing": "full"}))
    labs = [sys.executable, "-m", "labs_utils.cli", "dry-run", "--runs", str(runs), "--device", "cpu", "--json"]
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", PEAK_MIB, *labs], capture_output=True, text=True, check=True)
    answer, peak_mib = done.stdout.splitlines()
    with capsys.disabled():
        print(f"\n8B, {seq_len} tokens: {time.perf_counter() - started:.1f} s, {peak_mib} MiB")
    assert json.loads(answer)["parts"]["parameters"] == 2 * LLAMA_8B.parameters
    assert int(peak_mib) * 2**20 < 2e9
