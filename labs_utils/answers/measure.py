"""`measure`: a live run in a process of its own: the CUDA allocator's peak, or the tracker on a CPU.

One variant, one process: Liger patches classes for good, and an allocator remembers. A run that fails is an answer
with a named outcome, and the next one starts afresh. A run of DDP or DeepSpeed gets a process for each rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from labs_utils.answer import Answer
from labs_utils.answers.host_need import too_large_for_host
from labs_utils.answers.measure_ranks import measure_ranks, uses_gpus
from labs_utils.coverage import why_not_measured
from labs_utils.device import CPU, this_device
from labs_utils.run import Run, read_runs
from labs_utils.workers.launch import LaunchError

RUN_LIMIT_SECONDS = 600
LARGEST_SPARES = 4  # processes that import torch while another one measures


class Settings(NamedTuple):
    """How several ranks are launched.

    `threads` is how many each computes with on the host (None: they share the cores), `together` how many runs in a row
    of equally many ranks share one launch, which saves its time, and `limit_seconds` how long that may take.
    """

    threads: int | None = None
    together: int = 1
    limit_seconds: float = RUN_LIMIT_SECONDS


DEFAULTS = Settings()


def measure(run: Run, settings: Settings = DEFAULTS) -> Answer:
    """What the run really needs on this machine, in its third step: bytes by phase, and seconds a step.

    Returns:
        An `Answer`; `provenance` has the peak of each phase, the spread of the times, the versions and the date. Of
        several ranks it is that of the one with the largest peak, with more about all of them (`measure_ranks`).
        Outcomes besides "ok": "out of memory", "unsupported" (a kernel or package is missing), "crash", "timeout".
    """
    return next(measure_all([run], settings))


def measure_all(runs: Iterable[Run], settings: Settings = DEFAULTS) -> Iterator[Answer]:
    """Measure runs one after another, each in its own process; answers come as they are made.

    A process takes seconds to import torch: some are started while another one measures.
    """
    waiting, spares = deque(runs), deque()
    try:
        while waiting:
            if waiting[0].engine != "torch":
                yield from answers_of_ranks(next_of_ranks(waiting, settings.together), settings)
                continue
            if problem := refusal(waiting[0]):
                yield failed(waiting.popleft(), *problem)
                continue
            while len(spares) < min(len(waiting), spare_processes()):
                spares.append(Worker())
            yield answer_in(spares.popleft(), waiting.popleft())
    finally:
        for worker in spares:
            worker.stop()


def measure_to_file(runs: list[Run], out: Path | None, resume: bool, settings: Settings = DEFAULTS) -> Iterator[Answer]:
    """Measure runs and append each answer to `out` as it is made; with `resume`, runs that it answers are left out.

    Nothing whole is lost: a last line that was cut off as one of ours is taken away, any other is only ended. Raises
    `OSError` if `out` can't be written.
    """
    if out is None:
        yield from measure_all(runs, settings)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = out.read_bytes() if out.exists() else b""
    complete = end_last_line(out, kept)
    done = [run for _, run in read_runs(complete.splitlines(), out.name)] if resume else []
    with open(out, "a", encoding="utf-8") as file:
        for answer in measure_all([run for run in runs if run not in done], settings):
            file.write(json.dumps(answer.to_dict()) + "\n")
            file.flush()
            yield answer


def end_last_line(out: Path, kept: bytes) -> bytes:
    """End a last line that has no newline, or take it away in place if it is an answer that was cut off."""
    start = kept.rfind(b"\n") + 1
    tail = kept[start:]
    if not tail:
        return kept
    if tail.startswith(b'{"run"') and not tail.rstrip().endswith(b"}"):
        os.truncate(out, start)
        return kept[:start]
    with open(out, "ab") as file:
        file.write(b"\n")
    return kept + b"\n"


def spare_processes() -> int:
    """How many processes may get ready while another one measures: a quarter of the cores' number."""
    return max(1, min(LARGEST_SPARES, (os.cpu_count() or 1) // 4))


def answer_in(worker: Worker, run: Run) -> Answer:
    """Let a worker measure one run, whatever becomes of it."""
    try:
        plain_answer = worker.ask(run)
    except subprocess.TimeoutExpired:
        return failed(run, "timeout", f"the run took longer than {RUN_LIMIT_SECONDS} seconds and was stopped")
    if plain_answer is None:
        return failed(run, "crash", f"the process ended without an answer: {worker.last_words()}")
    return Answer.model_validate(plain_answer)


def next_of_ranks(waiting: deque[Run], together: int) -> list[Run]:
    """Take the next run off `waiting`, and those after it that can share its launch."""
    taken = [waiting.popleft()]
    while waiting and len(taken) < together and same_launch(taken[0], waiting[0]):
        taken.append(waiting.popleft())
    return taken


def same_launch(one: Run, other: Run) -> bool:
    """Whether runs can follow each other in the same ranks; Liger patches a process for good."""
    fields = ("engine", "world_size", "layer_kernels", "loss_kernel")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def answers_of_ranks(runs: list[Run], settings: Settings) -> Iterator[Answer]:
    """Let several processes measure runs, whatever becomes of them; after one that fails a new launch goes on."""
    done = 0
    if problem := refusal(runs[0]):
        yield failed(runs[0], *problem)
        done = 1
    else:
        startable = list(takewhile(lambda run: not refusal(run), runs))
        try:
            for answer in measure_ranks(startable, settings.limit_seconds, settings.threads):
                done += 1
                yield answer
        except LaunchError as error:
            yield failed(startable[done], error.outcome, str(error))
            done += 1
    if done < len(runs):
        yield from answers_of_ranks(runs[done:], settings)


def refusal(run: Run) -> tuple[str, str] | None:
    """The outcome and the reason of a run that can't be tried here; None if it can."""
    on_gpu = this_device().is_gpu if run.engine == "torch" else uses_gpus(run)
    if reason := why_not_measured(run, on_gpu):
        return "unsupported", reason
    if reason := too_large_for_host(run, this_device() if on_gpu else CPU):
        return "out of memory", reason
    return None


def failed(run: Run, outcome: str, reason: str) -> Answer:
    """The answer to a run that gave none, with its outcome's name and the reason in a sentence."""
    return Answer(run=run, method="measure", device=this_device().name, outcome=outcome, provenance={"reason": reason})


class Worker:
    """A process of `labs_utils.workers.one_run`: it imports, waits for a run, answers and ends."""

    def __init__(self):
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "labs_utils.workers.one_run"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )

    def ask(self, run: Run) -> dict | None:
        """The worker's answer as plain data, or None if it died. Raises `subprocess.TimeoutExpired`."""
        try:
            output, _ = self._process.communicate(json.dumps(run.to_dict()).encode(), timeout=RUN_LIMIT_SECONDS)
        finally:
            self.stop()
        return json.loads(output) if output.strip() and self._process.returncode == 0 else None

    def last_words(self) -> str:
        """The last line that the process wrote to its standard error."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {self._process.returncode}"

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
