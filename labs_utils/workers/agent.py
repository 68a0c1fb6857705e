"""The process between a notebook and its ranks: PyTorch's elastic agent, which starts them and ends them together.

python -m labs_utils.workers.agent SETTINGS.json

A process of its own, because the agent takes over the signal handlers of the one it runs in. It leaves the exit status
of each rank that failed in `agent.json`, beside the results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from labs_utils.workers.rank import RESULTS, end_with_the_launcher

POLL_SECONDS = 0.1


def main() -> None:
    end_with_the_launcher()
    folder = Path(os.environ[RESULTS])
    settings = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    if torch.cuda.device_count() < settings["config"]["workers"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all on the CPU, and nothing on a GPU by mistake
    try:
        elastic_launch(config(folder, **settings["config"]), sys.executable)(*settings["command"])
    except ChildFailedError as error:
        failed = {rank: failure.exitcode for rank, failure in sorted(error.failures.items(), key=first_to_fail)}
        (folder / "agent.json").write_text(json.dumps(failed), "utf-8")
        sys.exit(1)


def first_to_fail(failure: tuple) -> tuple:
    """Sort key: ranks that ended themselves first, in order of time; then those that this agent ended."""
    rank, process = failure
    return process.exitcode == -signal.SIGTERM, process.timestamp, rank


def config(folder: Path, workers: int, port: int) -> LaunchConfig:
    """One machine, no second attempt; port 0 lets the operating system choose one that is free."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=Std.ERR),
    )


if __name__ == "__main__":
    main()
