"""The judge: a student's source runs in another process under caps, and is scored in this one by its answers alone.

It holds what rlimits hold. Shared memory, processes that leave their group, the network, the file system, and root
(who may lift a rlimit) are for a sandbox around it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from labs_utils.exercises.attempts import CASES, draw_cases
from labs_utils.exercises.contract import PACKAGE, Attempt, Result, find
from labs_utils.exercises.forbidden import forbidden_uses
from labs_utils.exercises.marking import STOPPED, result_of
from labs_utils.exercises.plain import load, save

MEMORY_BYTES = 512 * 2**20
START_SECONDS = 120  # importing torch on a busy machine
POLL_SECONDS = 0.01


def judge(
    exercise_id: str,
    source: str,
    *,
    seed: int,
    cases: int = CASES,
    memory_bytes: int = MEMORY_BYTES,
    seconds: float = 60.0,
    setup: str = "",
    package: str = PACKAGE,
) -> Result:
    """Grade the source of a student's cell on `cases` fresh cases drawn from `seed`.

    `memory_bytes` is what the student's code and `call` may take beyond the interpreter, the libraries that the
    exercise's module imports, and the cases; torch itself takes up to 96 MiB of it at its first optimizer step,
    checkpoint or gloo group. `seconds` is for all cases, start-up not counted. `setup` is the course's own source
    that the cell relies on, such as the notebook's imports. Cases answered before a crash count.

    Raises:
        ValueError: an unknown id.
        RuntimeError: the child process could not start, which is no fault of the student's.
    """
    exercise = find(exercise_id, package)
    drawn = draw_cases(exercise, np.random.default_rng(seed), cases)
    with _folder() as folder:
        (folder / "setup.py").write_text(setup, "utf-8")
        (folder / "answer.py").write_text(source, "utf-8", errors="replace")
        for index, case in enumerate(drawn):
            save(case, folder / f"case-{index}")
        ending = _run_worker(
            [package, exercise_id, str(folder), str(cases), str(memory_bytes), str(seconds)], folder, seconds
        )
        attempts = [_read_attempt(folder / f"answer-{index}") or ending for index in range(cases)]
    return result_of(exercise, drawn, attempts, forbidden_uses(exercise, source))


@contextmanager
def _folder() -> Iterator[Path]:
    """A private folder, removed by `rm`: Python's own clean-up recurses, and folders can be nested too deep."""
    folder = Path(tempfile.mkdtemp(prefix="labs-judge-"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


def _run_worker(arguments: list[str], folder: Path, seconds: float) -> Attempt:
    """Run the worker to its end, or to its time limit, and its process group with it: how it ended."""
    start, start_writer = os.pipe()
    with open(folder / "start.log", "wb") as log, open(start, "rb") as started_pipe:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "labs_utils.exercises.judged", *arguments, str(start_writer)],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(start_writer,),
            start_new_session=True,
        )
        os.close(start_writer)
        try:
            started = bool(select.select([started_pipe], [], [], START_SECONDS)[0] and started_pipe.read(1))
            timed_out = started and not _ends_within(seconds, child.pid)
        finally:
            # Before the child is reaped, so that the group's number can't have passed to someone else.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if not started:
        reason = (folder / "start.log").read_text("utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"the judge could not start its worker for {arguments[1]}: {reason}")
    return _ending(child.returncode, timed_out, seconds)


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of this process's environment but where code is found, and what makes the cap exact.

    One thread and one malloc arena; and every large block mapped by itself and given back when freed, because
    glibc otherwise keeps freed blocks in a heap that aligned allocations fragment, by chance up to the whole cap.
    """
    return {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(128 * 2**10),
        "CUDA_VISIBLE_DEVICES": "",
    }


def _ends_within(seconds: float, pid: int) -> bool:
    """Wait for a child without reaping it; False where it is still running when its time is up."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _ending(returncode: int, timed_out: bool, seconds: float) -> Attempt:
    """Why a case that was not answered was not."""
    if timed_out or returncode == -signal.SIGXCPU:
        return Attempt("timeout", message=f"no answer within {seconds:g} seconds")
    if returncode == -signal.SIGKILL:
        return Attempt("memory", message="the system killed your code, as it does when memory runs out")
    how = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    return Attempt("crash", message=f"your code ended its process ({how}) before it answered")


def _read_attempt(stem: Path) -> Attempt | None:
    """What the worker wrote for one case; None where nothing readable is there. The student's process wrote it."""
    try:
        tried = Attempt(**load(stem))
    except Exception:
        return None
    known = ("answered", "not attempted", "wrong", *STOPPED)
    plain = isinstance(tried.outcome, str) and isinstance(tried.message, str)
    return tried if plain and tried.outcome in known else None
