"""One rank of several: takes its argument, says how far it is, and leaves a result or a named error.

A worker is a module that ends with `if __name__ == "__main__": serve(work)`. It runs under `launch`, where results
go to files, and under `torchrun`, `deepspeed`, `accelerate launch` and `srun torchrun`, where they are printed:

torchrun --nproc-per-node 2 -m labs_utils.workers.zero run.json
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from labs_utils.run import RunError

RESULTS = "LABS_RESULTS"  # the folder in which a launcher waits for results
Progress = Callable[[str], None]


def serve(work: Callable[[dict, Progress], dict]) -> None:
    """Call `work(argument, progress)` with the JSON object in the file named last on the command line.

    `work` returns plain data, and tells `progress` in a few words what it is doing. A failure ends the process with
    exit status 1.
    """
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    results, rank = os.environ.get(RESULTS), int(os.environ.get("RANK", 0))
    if results:
        end_with_the_launcher()
    try:
        argument = json.loads(Path(sys.argv[-1]).read_text("utf-8"))
        answer = {"result": work(argument, lambda text: tell(answers_to, rank, text))}
    except Exception as error:
        outcome, reason = outcome_of(error)
        answer = {"outcome": outcome, "reason": reason, "at": time.time()}
        traceback.print_exc()
    leave(answer, rank, results, answers_to)
    sys.stderr.flush()
    os._exit("result" not in answer)  # at once: a lost peer can keep a process group's destructor waiting


def tell(answers_to: int, rank: int, text: str) -> None:
    """One line, in one write, so that those of several ranks don't mix."""
    os.write(answers_to, f"rank {rank}: {' '.join(text.split())[:200]}\n".encode(errors="replace"))


def leave(answer: dict, rank: int, results: str | None, answers_to: int) -> None:
    """Put the result or the error where the launcher looks for it, whole or not at all; without one, print it."""
    text = json.dumps({"rank": rank, **answer})
    if results is None:
        os.write(answers_to, f"{text}\n".encode())
        return
    unfinished = Path(results, f"{rank}.unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.rename(unfinished.with_suffix(".json"))


def keep(part: dict, progress: Progress) -> None:
    """Leave a part of a result where a launcher finds it at once, whatever becomes of the rest."""
    if results := os.environ.get(RESULTS):
        with open(Path(results, f"{os.environ.get('RANK', 0)}.kept"), "a", encoding="utf-8") as file:
            file.write(json.dumps(part) + "\n")
        progress("one part is done")


def end_with_the_launcher() -> None:
    """End this process and its children when standard input ends, which a launcher holds open as long as it lives."""

    def wait() -> None:
        os.read(0, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the launcher and the agent start what they start in its own group

    threading.Thread(target=wait, daemon=True).start()


def outcome_of(error: Exception) -> tuple[str, str]:
    """The name of what went wrong ("out of memory", "unsupported", "crash"), and its reason in one line."""
    import torch

    text = first_line(error)
    if isinstance(error, RunError):
        return "unsupported", text
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in text:
        return "out of memory", text
    if isinstance(error, (ImportError, NotImplementedError, KeyError, ValidationError)):
        return "unsupported", f"{type(error).__name__}: {text}"
    if isinstance(error, RuntimeError):
        missing = any(words in str(error) for words in ("No available kernel", "No viable backend"))
        return "unsupported" if missing else "crash", text
    return "crash", f"{type(error).__name__}: {text}"


def first_line(error: Exception) -> str:
    """The first line of an error's text; of values that are refused, the first and what it should be."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def local_ranks() -> int:
    """How many ranks share this machine (`LOCAL_WORLD_SIZE`; the `deepspeed` launcher says `LOCAL_SIZE`)."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def rank_device():
    """This rank's own GPU, or the CPU for all of them where there are fewer GPUs than ranks; a `torch.device`."""
    import torch

    if torch.cuda.device_count() < local_ranks():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device
