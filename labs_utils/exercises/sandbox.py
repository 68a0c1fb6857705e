"""The process in which student code runs: it imports what a lab needs once, and forks a child for each source.

`labs_utils.exercises.judge` starts it and asks. The child runs the source and `call` on cases from files, and writes
each answer to a file. Everything after `_define` may be in the student's hands; only the answer files leave the child.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from labs_utils.exercises.attempts import attempt, failure
from labs_utils.exercises.calls import calls_of
from labs_utils.exercises.confine import confine
from labs_utils.exercises.contract import Attempt
from labs_utils.exercises.plain import FILE_BYTES, load, save
from labs_utils.exercises.session import resident_bytes, session_of

ORACLES = "labs_utils.exercises.saved_bytes"  # a module of meters that a set-up may import for its demonstrations
START_SECONDS = 120  # to import torch, or to read cases, on a busy machine
POLL_SECONDS = 0.01
POLLS_A_LOOK = 5  # at what all processes take
MOST_PROCESSES = 64
KILLS = 20


def serve(package: str, lab: str) -> None:
    """Answer requests, a line of JSON each, until there are no more: first `{"pid"}` of the child, then how it ended.

    Raises:
        RuntimeError: the lab or its set-up has started a thread, which a forked child would wait for in vain.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)  # what libraries print is no reply
        module = _module_with_setup(Path("setup.py"))
        calls = calls_of(lab, package)
        if len(threads := os.listdir("/proc/self/task")) > 1:
            raise RuntimeError(f"{package}.{lab} or its set-up has started {len(threads) - 1} threads on import")
        print(json.dumps({"ready": True}), file=replies)
        for line in sys.stdin:
            request = json.loads(line)
            exercise_id = request.pop("exercise_id")
            pid, start = _fork(calls[exercise_id], exercise_id.partition(".")[2], module, **request)
            print(json.dumps({"pid": pid}), file=replies)
            print(json.dumps(_ending(pid, start, request["seconds"], request["memory_bytes"])), file=replies)


def _module_with_setup(path: Path) -> ModuleType:
    """The module that a student's source will fill, with the course's own set-up run in it."""
    module = sys.modules["answer"] = ModuleType("answer")
    exec(compile(path.read_text("utf-8"), "setup.py", "exec"), module.__dict__)
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) == ORACLES:
            setattr(module, name, _not_there)
    return module


def _not_there(*args, **kwargs) -> NoReturn:
    """What an oracle is while student code is judged."""
    raise RuntimeError("this meter of the course isn't there while you are graded: write your own")


def _fork(call: Callable, name: str, module: ModuleType, **request) -> tuple[int, int]:
    """A child for one source: its process number, and a pipe that it writes a byte to before student code runs."""
    start, start_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_child(call, name, module, start_writer, **request)
    os.close(start_writer)
    return pid, start


def _ending(pid: int, start: int, seconds: float, memory_bytes: int) -> dict:
    """Wait for a child's end or for its time limit; then end all that it has left running."""
    try:
        started = bool(select.select([start], [], [], START_SECONDS)[0] and os.read(start, 1))
        stopped = _why_stopped(pid, seconds, memory_bytes) if started else None
    finally:
        os.close(start)
        _kill_session(pid)
        returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"started": started, "stopped": stopped, "returncode": returncode}


def _why_stopped(pid: int, seconds: float, memory_bytes: int) -> str | None:
    """Wait for a child without reaping it: None when it has ended, or else why its time is up.

    That is "timeout", also where nobody waits for its answers any more; "memory" or "processes" where all the processes
    of its session together have too much.
    """
    deadline, polls = time.monotonic() + seconds, count()
    allowed_bytes = memory_bytes + resident_bytes([pid])
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        judge_is_gone = select.select([sys.stdin], [], [], POLL_SECONDS)[0]
        if judge_is_gone or time.monotonic() > deadline:
            return "timeout"
        if next(polls) % POLLS_A_LOOK == 0:
            if len(processes := session_of(pid)) > MOST_PROCESSES:
                return "processes"
            if resident_bytes(processes) > allowed_bytes:
                return "memory"
    return None


def _kill_session(pid: int) -> None:
    """End a child and all of its session; before the child is reaped, so that its number can't be someone else's."""
    for _ in range(KILLS):  # processes that fork meanwhile get another
        for each in session_of(pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if session_of(pid) in ([], [pid]):
            break
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _be_the_child(
    call: Callable,
    name: str,
    module: ModuleType,
    start: int,
    folder: str,
    cases: int,
    memory_bytes: int,
    seconds: float,
) -> NoReturn:
    """Attempt every case in `folder` with the function called `name`, under the caps, after a byte to `start`."""
    try:
        start = _enter(folder, start)
        drawn = [load(Path(f"case-{index}")) for index in range(cases)]
        _point_to_source(module, Path(folder, "answer.py"))
        confine(Path(folder))
        _limit(memory_bytes, seconds)
        os.write(start, b"1")
        os.close(start)
        _send_output_to(os.devnull)  # it counts for nothing, and there can be a lot of it
        fn = _define(module, name)
        for index, case in enumerate(drawn):
            tried = fn if isinstance(fn, Attempt) else attempt(call, fn, case)
            _write(tried, Path(folder, f"answer-{index}"))
        os._exit(0)  # without waiting for threads that the student's code left behind
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _enter(folder: str, start: int) -> int:
    """Leave all that is the parent's: its session, its files, its folder. The pipe `start` under its new number."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _send_output_to("start.log")
    os.dup2(start, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def _send_output_to(path: str) -> None:
    output = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _point_to_source(module: ModuleType, path: Path) -> None:
    """Make it the module of a file, because dataclasses and Triton look for both."""
    spec = importlib.util.spec_from_file_location("answer", path)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, str(path)


def _limit(memory_bytes: int, seconds: float) -> None:
    """Cap memory, processor time and file sizes from here on.

    RLIMIT_DATA counts private writable memory, touched or not. RLIMIT_AS would also count the libraries' mapped
    files and the address space that allocators and CUDA reserve without using, hundreds of MiB that vary.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_SELF)
    processor_seconds = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    data_bytes = _private_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))


def _private_bytes() -> int:
    """What RLIMIT_DATA counts of this process now: `VmData` of proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def _define(module: ModuleType, name: str) -> Callable | Attempt:
    """Run the student's source: the function it defines, or why there is none."""
    try:
        module.__spec__.loader.exec_module(module)
    except BaseException as error:  # SystemExit too
        return failure(error, module.__file__)
    if not callable(getattr(module, name, None)):
        return Attempt("not attempted", message=f"The cell defines no function called {name}.")
    return getattr(module, name)


def _write(tried: Attempt, stem: Path) -> None:
    """Write an attempt at once, so that what comes later can't lose it; an answer that can't be written is said so."""
    try:
        save(vars(tried), stem)
    except Exception as error:
        save(vars(failure(error, "")), stem)


if __name__ == "__main__":
    try:
        serve(*sys.argv[1:])
    finally:
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)
