"""The judge: a student's source runs in another process under caps, and is scored in this one by its answers alone.

It holds what rlimits and Landlock hold (`labs_utils.exercises.confine`). The network, processes that leave their
session, and kernels without Landlock are for a sandbox around it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from labs_utils.exercises.attempts import paper_of
from labs_utils.exercises.contract import MEMORY_BYTES, PACKAGE, Attempt, Paper, Result, find
from labs_utils.exercises.forbidden import MOST_CHARACTERS, forbidden_uses
from labs_utils.exercises.marking import STOPPED, result_of
from labs_utils.exercises.plain import load, save

REPLY_SECONDS = 150  # more than the two minutes that a start may take there; a fork takes no time
END_SECONDS = 5
MOST_PAPERS = 64  # that are kept: those of a class's labs
MOST_IDLE = 4  # parents that wait for work, of some hundred MB each


def judge(
    exercise_id: str,
    source: str,
    *,
    seed: int,
    cases: int | None = None,
    memory_bytes: int = MEMORY_BYTES,
    seconds: float = 60.0,
    setup: str = "",
    package: str = PACKAGE,
) -> Result:
    """Grade the source of a student's cell on `cases` fresh cases drawn from `seed`, by default the exercise's number.

    `memory_bytes` is what the student's code and `call` may take beyond the interpreter, the libraries that the
    exercise's module imports, and the cases; torch itself takes up to 96 MiB of it at its first optimizer step,
    checkpoint or gloo group. `seconds` is for all cases, start-up not counted. `setup` is the course's own source
    that the cell relies on, such as the notebook's imports. Cases answered before a crash count.

    Raises:
        ValueError: an unknown id.
        RuntimeError: the student's process could not start, which is no fault of the student's.
    """
    paper = set_paper(exercise_id, seed, cases, package)
    if len(source) > MOST_CHARACTERS:
        return Result(0.0, "crash", f"The cell has {len(source):,} characters; at most {MOST_CHARACTERS:,} are run.")
    caps = {"cases": len(paper.cases), "memory_bytes": memory_bytes, "seconds": seconds}
    with _folder() as folder:
        (folder / "answer.py").write_text(source, "utf-8", errors="replace")
        for index, case in enumerate(paper.cases):
            save(case, folder / f"case-{index}")
        with _parent(package, exercise_id, setup) as parent:
            ending = parent.run({"exercise_id": exercise_id, "folder": str(folder), **caps})
        attempts = [_read_attempt(folder / f"answer-{index}") or ending for index in range(len(paper.cases))]
    counted = paper.exercise.self_reported
    told = (f"self-reported: {counted}",) if counted else ()
    return result_of(paper, attempts, forbidden_uses(paper.exercise, source) + told)


@lru_cache(MOST_PAPERS)
def set_paper(exercise_id: str, seed: int, cases: int | None = None, package: str = PACKAGE) -> Paper:
    """The cases of one seed and their truths: made once for all who are judged by it, before any of their code runs."""
    exercise = find(exercise_id, package)
    return paper_of(exercise, np.random.default_rng(seed), cases or exercise.cases)


@contextmanager
def _folder() -> Iterator[Path]:
    """A private folder, removed by `rm`: Python's own clean-up recurses, and folders can be nested too deep."""
    folder = Path(tempfile.mkdtemp(prefix="labs-judge-"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


class Parent:
    """A process of `labs_utils.exercises.sandbox`, which has imported a lab and its set-up.

    It ends when this process ends, however that happens: it notices that nobody can ask it any more.

    Raises:
        RuntimeError: it couldn't start.
    """

    def __init__(self, package: str, exercise_id: str, setup: str):
        lab = exercise_id.partition(".")[0]
        self.serves = (package, lab, setup)
        self.folder = Path(tempfile.mkdtemp(prefix="labs-judge-"))
        (self.folder / "setup.py").write_text(setup, "utf-8")
        with tempfile.TemporaryFile() as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labs_utils.exercises.sandbox", package, lab],
                cwd=self.folder,
                env=_environment(self.folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # so that `select` knows of every line
                start_new_session=True,
            )
            try:
                ready = self._reply(REPLY_SECONDS)
            except BaseException:
                self.end()
                raise
            if not ready:
                self.end()
                log.seek(0)
                raise RuntimeError(_why_not_started(exercise_id, log.read()))

    def run(self, request: dict) -> Attempt:
        """Run a source in a child, to its end or its time limit: why a case that was not answered was not."""
        child = ending = None
        try:
            self.process.stdin.write(f"{json.dumps(request)}\n".encode())
            child = self._reply(REPLY_SECONDS)
            ending = child and self._reply(REPLY_SECONDS + request["seconds"])
        finally:
            if not ending:  # interrupted; or the student's code has ended or stopped its parent
                stopped = None if self.end() else "timeout"
                if child:
                    with suppress(ProcessLookupError):
                        os.killpg(child["pid"], signal.SIGKILL)
        if not ending:
            return _attempt_that_ended(self.process.returncode, stopped, request["seconds"])
        if not ending["started"]:
            log = Path(request["folder"], "start.log").read_bytes()
            raise RuntimeError(_why_not_started(request["exercise_id"], log))
        return _attempt_that_ended(ending["returncode"], ending["stopped"], request["seconds"])

    def _reply(self, seconds: float) -> dict | None:
        """The next line of the process; None where it has ended or takes too long."""
        line = b""
        if select.select([self.process.stdout], [], [], seconds)[0]:
            line = self.process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def end(self) -> bool:
        """Have the process end itself and its child, or else kill it; whether it could."""
        self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            self.process.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # the process has, if it could


_idle: list[Parent] = []
os.register_at_fork(after_in_child=_idle.clear)  # they are this process's to ask


@contextmanager
def _parent(package: str, exercise_id: str, setup: str) -> Iterator[Parent]:
    """A parent for a source: one that waits for work, or a new one. It is kept for the next source if it lives."""
    parent = _waiting(package, exercise_id.partition(".")[0], setup) or Parent(package, exercise_id, setup)
    try:
        yield parent
    finally:
        if parent.process.poll() is None:
            _idle.append(parent)
        while len(_idle) > MOST_IDLE:
            _idle.pop(0).end()


def _waiting(*serves: str) -> Parent | None:
    """A living parent that waits for work of this kind, and waits no more."""
    for parent in list(_idle):
        if parent.serves == serves:
            with suppress(ValueError):  # another thread has taken it
                _idle.remove(parent)
                if parent.process.poll() is None:
                    return parent
                parent.end()
    return None


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


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


def _why_not_started(exercise_id: str, log: bytes) -> str:
    return f"the judge could not start its worker for {exercise_id}: {log.decode('utf-8', errors='replace')[-2000:]}"


def _attempt_that_ended(returncode: int, stopped: str | None, seconds: float) -> Attempt:
    """Why a case that was not answered was not."""
    if stopped == "timeout" or returncode == -signal.SIGXCPU:
        return Attempt("timeout", message=f"no answer within {seconds:g} seconds")
    if stopped == "processes":
        return Attempt("processes", message="your code started more processes than it may")
    if stopped == "memory":
        return Attempt("memory", message="your code, with all that it started, took more memory than it may have")
    if returncode == -signal.SIGKILL:
        return Attempt("memory", message="the system killed your code, as it does when memory runs out")
    how = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    return Attempt("crash", message=f"your code ended its process ({how}) before it answered")


def _read_attempt(stem: Path) -> Attempt | None:
    """What the student's process wrote for one case; None where nothing readable is there."""
    try:
        tried = Attempt(**load(stem))
    except Exception:
        return None
    known = ("answered", "not attempted", "wrong", *STOPPED)
    plain = isinstance(tried.outcome, str) and isinstance(tried.message, str)
    return tried if plain and tried.outcome in known else None
