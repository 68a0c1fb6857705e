"""The ZeRO worker under the launchers that people use: each starts two ranks, which learn as plain PyTorch does."""

import json
import os
import socket
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import SHAPE
from places import ROOT
from plain_training import plain_losses

from labs_utils.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed isn't installed")]

BIN = Path(sys.executable).parent
WORKER = "labs_utils.workers.zero"
RUN = {"model": SHAPE, "seq_len": 64, "zero_stage": 2, "precision": "fp32"}
ALONE = {"--num_machines": "1", "--mixed_precision": "no", "--dynamo_backend": "no"}
COMMANDS = {
    "torchrun": [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "-m", WORKER],
    "deepspeed": [BIN / "deepspeed", "--num_accelerators", "2", "--master_port", "PORT", "--module", WORKER],
    "accelerate": [BIN / "accelerate", "launch", "--use_deepspeed", "--num_processes", "2",
                   *(word for option in ALONE.items() for word in option), "--main_process_port", "0", "-m", WORKER],
    "one node": [ROOT / "slurm/one_node.sh"],
    "several nodes": [ROOT / "slurm/several_nodes.sh"],
}  # fmt: skip
# What Slurm would do, on this machine: srun starts the command once a node, scontrol names the nodes.
SLURM = {"srun": 'for node in $(seq "$SLURM_JOB_NUM_NODES"); do "$@" & done; wait', "scontrol": "echo localhost"}


@cache
def expected_losses() -> list[list[float]]:
    return plain_losses(Run.parse(RUN), 2, steps=3)


@pytest.fixture
def on_slurm(tmp_path):
    """An environment with stand-ins for Slurm's commands and variables."""
    for name, script in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_ID": str(os.getpid()), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize("name", COMMANDS)
def test_two_ranks_started_by(name, tmp_path, on_slurm):
    if "node" in name and not (ROOT / ".venv/bin/torchrun").exists():
        pytest.skip("the scripts are for an installation in .venv")
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    nodes = 2 if name == "several nodes" else 1
    environment = {**on_slurm, "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_GPUS_ON_NODE": str(2 // nodes)}
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
    command = [port if word == "PORT" else word for word in [*COMMANDS[name], tmp_path / "run.json"]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    losses = {each["rank"]: each["result"][0]["losses"] for each in printed}
    assert sorted(losses) == [0, 1], done.stderr[-2000:]
    for rank, expected in enumerate(expected_losses()):
        assert losses[rank] == pytest.approx(expected, rel=1e-6)  # fp32: sums are taken in another order


def test_a_process_alone_is_the_only_rank(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    command = [sys.executable, "-m", WORKER, tmp_path / "run.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["result"][0]["losses"] == pytest.approx(expected_losses()[0], rel=1e-3)  # it learns from less


def test_a_failure_is_told_and_ends_with_an_error(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({**RUN, "precision": "bf16-mixed"}))
    command = [sys.executable, "-m", WORKER, tmp_path / "run.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "take precision 'bf16-master'" in json.loads(done.stdout.splitlines()[-1])["reason"]
