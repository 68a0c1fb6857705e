"""The judge's other half: runs a student's source and `call` on cases from files, and writes each answer to a file.

Everything after `_define` may be in the student's hands; only the answer files leave this process.
"""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from labs_utils.exercises.attempts import attempt, failure
from labs_utils.exercises.contract import Attempt, find
from labs_utils.exercises.plain import FILE_BYTES, load, save


def main(
    package: str, exercise_id: str, folder: Path, cases: int, memory_bytes: int, seconds: float, start: int
) -> None:
    """Attempt every case in `folder` under the caps, after a byte to the pipe `start`; never returns."""
    exercise = find(exercise_id, package)
    drawn = [load(folder / f"case-{index}") for index in range(cases)]
    module = _module_with_setup(folder)
    _discard_output()
    _limit(memory_bytes, seconds)
    os.write(start, b"1")
    os.close(start)
    fn = _define(module, exercise.function_name)
    for index, case in enumerate(drawn):
        tried = fn if isinstance(fn, Attempt) else attempt(exercise, fn, case)
        _write(tried, folder / f"answer-{index}")
    os._exit(0)  # without waiting for threads that the student's code left behind


def _write(tried: Attempt, stem: Path) -> None:
    """Write an attempt at once, so that what comes later can't lose it; an answer that can't be written is said so."""
    try:
        save(vars(tried), stem)
    except Exception as error:
        save(vars(failure(error, "")), stem)


def _module_with_setup(folder: Path) -> ModuleType:
    """The module that the student's source will fill, with the course's own set-up run in it. A real module, with
    its source in a file, because dataclasses and Triton look for both."""
    spec = importlib.util.spec_from_file_location("answer", folder / "answer.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module
    exec(compile((folder / "setup.py").read_text("utf-8"), "setup.py", "exec"), module.__dict__)
    return module


def _discard_output() -> None:
    """Send what is printed nowhere: it counts for nothing, and there can be a lot of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


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


if __name__ == "__main__":
    package, exercise_id, folder, cases, memory_bytes, seconds, start = sys.argv[1:]
    main(package, exercise_id, Path(folder), int(cases), int(memory_bytes), float(seconds), int(start))
