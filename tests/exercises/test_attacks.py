"""Ways to full marks without a right answer: where nothing stands in their way they work, in the judge none does."""

import json
import sys

import numpy as np
import pytest
from places import ROOT

from labs_utils.exercises import confine, find, grade
from labs_utils.exercises.judge import judge

pytestmark = pytest.mark.slow  # `test_judge` has the quick part
SEED = 77
EXERCISE, ORACLE = "lab01.state_bytes", "labs_utils.exercises.lab01.state_bytes"
HEAD = "def state_bytes(parameters, recipe):\n"
SETUP = "from labs_utils.exercises import layer_saved_bytes"
STATES = "{kind: 1 for kind in ('parameters', 'gradients', 'optimizer_states')}"
needs_landlock = pytest.mark.skipif(
    sys.platform != "linux" or confine.version_of_landlock() < 1,
    reason="this kernel has no Landlock to close files with",
)


def source(lines):
    return HEAD + "\n".join(f"    {line}" for line in lines)


def judged(lines, seconds=20.0):
    return judge(EXERCISE, source(lines), seed=SEED, seconds=seconds, setup=SETUP)


def works_in_the_open(lines):
    """Whether the source gets full marks in a process where oracles are in reach, as in a notebook."""
    space = {}
    exec(source(lines), space)
    return grade(find(EXERCISE), space["state_bytes"], np.random.default_rng(0), cases=1).score == 1


def asks(objects):
    """Lines that ask the oracle, if it is among the objects."""
    return (
        "import gc, sys",
        f"for each in {objects}:",
        "    if type(each).__name__ == 'function' and each.__name__ == 'trained_state_bytes':",
        "        return each(parameters, recipe)",
        "raise LookupError('no oracle found')",
    )


IN_MEMORY = {
    "imports it": (f"from {ORACLE} import trained_state_bytes", "return trained_state_bytes(parameters, recipe)"),
    "finds the exercise": (
        "from labs_utils.exercises import find",
        f"import {ORACLE} as oracle",
        "case = {'parameters': parameters}",
        f"truths = find('{EXERCISE}').truth(case)",
        "return next(truths[n] for n, s in oracle.recipes_at(case).items() if s['recipe'] == recipe)",
    ),
    "looks through loaded modules": asks("[v for m in list(sys.modules.values()) for v in list(vars(m).values())]"),
    "looks through the collector": asks("gc.get_objects()"),
    "looks behind all references": asks("[r for v in gc.get_objects() for r in gc.get_referents(v)]"),
    "looks through frames": (
        "import sys",
        "frame = sys._getframe()",
        "while frame:",
        "    for each in [*frame.f_locals.values(), *frame.f_globals.values()]:",
        "        if type(each).__name__ == 'Exercise':",
        "            frame, oracle = None, sys.modules[each.draw.__module__]",
        "            return oracle.trained_state_bytes(parameters, recipe)",
        "    frame = frame.f_back",
        "raise LookupError('no oracle found')",
    ),
}
ORACLES_FILE = str(ROOT / "labs_utils/exercises/lab01/state_bytes.py")
ASKED_ELSEWHERE = f"""import json, sys
from {ORACLE} import trained_state_bytes
print(json.dumps(trained_state_bytes(*json.loads(sys.argv[1]))))"""
ON_DISK = {
    "runs the oracle's file": (
        "space = {'__name__': 'oracle'}",
        f"exec(open({ORACLES_FILE!r}).read(), space)",
        "return space['trained_state_bytes'](parameters, recipe)",
    ),
    "reads the solution": (
        "space = {}",
        f"exec(open({str(ROOT / 'solutions/lab01.py')!r}).read(), space)",
        "return space['state_bytes'](parameters, recipe)",
    ),
    "imports the oracle afresh": (
        "import importlib.util, sys",
        f"spec = importlib.util.spec_from_file_location('fresh', {ORACLES_FILE!r})",
        "module = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(module)",
        "return module.trained_state_bytes(parameters, recipe)",
    ),
    "asks another process": (
        "import json, subprocess, sys",
        f"command = [sys.executable, '-c', {ASKED_ELSEWHERE!r}, json.dumps([parameters, recipe])]",
        "return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)",
    ),
}


@pytest.mark.parametrize("way", IN_MEMORY)
def test_no_oracle_is_in_the_students_process(way):
    assert works_in_the_open(IN_MEMORY[way])
    assert judged(IN_MEMORY[way]).score == 0


@needs_landlock
@pytest.mark.parametrize("way", ON_DISK)
def test_no_oracle_and_no_solution_can_be_read(way):
    assert works_in_the_open(ON_DISK[way])
    assert judged(ON_DISK[way]).score == 0


@needs_landlock
@pytest.mark.parametrize("name", ["labs_utils/exercises/marking.py", "labs_utils/exercises/plain.py", "data/gpus.csv"])
def test_the_courses_files_cannot_be_written(name):
    before = (ROOT / name).read_bytes()
    result = judged([f"open({str(ROOT / name)!r}, 'ab').write(b'# rewritten')", "return {}"])
    assert result.score == 0 and (ROOT / name).read_bytes() == before


def forged(**attempt):
    """Lines that write all answer files themselves, and end the process."""
    lines = f"    open(f'answer-{{n}}.json', 'w').write({json.dumps(attempt)!r})"
    return ("import os", "for n in range(4):", lines, "os._exit(0)")


FORGED = {
    "replaces the runner and the marking": (
        "import labs_utils.exercises.attempts as a, labs_utils.exercises.marking as m",
        "import __main__ as sandbox",
        "m.close = m.compare_bytes = lambda *_, **__: m.Mark(1.0, 'as expected')",
        "sandbox.attempt = a.attempt = lambda *_: a.Attempt('answered', {'parameters': 0})",
        "return {}",
    ),
    "writes its own marks": forged(outcome="passed", answer={"score": 1}, message=""),
    "says that it has passed": forged(outcome="answered", answer=None, message="passed", score=1),
    "answers with a score": forged(outcome="answered", answer={"score": 1.0}, message="as expected"),
    "is equal to everything": (
        "class Always(int):",
        "    __eq__ = __ge__ = __le__ = lambda self, other: True",
        "    __hash__ = int.__hash__",
        "return dict(parameters=Always(1), gradients=Always(1), optimizer_states=Always(1))",
    ),
    "leaves by the back door": ("import sys", "sys.exit(0)"),
    "rewrites its own case": (
        "for n in range(4):",
        "    open(f'case-{n}.json', 'w').write('{\"parameters\": 0}')",
        "return dict(parameters=0, gradients=0, optimizer_states=0)",
    ),
    "fills closures with its own": (
        "import gc, types",
        "for f in [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]:",
        "    for cell in f.__closure__ or ():",
        "        if str(f.__module__).startswith('labs_utils.exercises') and callable(cell.cell_contents):",
        f"            cell.cell_contents = lambda *_, **__: {STATES}",
        "return {}",
    ),
    "asks a meter of the course": ("return layer_saved_bytes({}, parameters)",),
}


@pytest.mark.parametrize("way", FORGED)
def test_what_the_students_process_says_of_itself_earns_nothing(way):
    assert judged(FORGED[way]).score == 0


LARGE = {
    "lifts its limit": (
        "import resource",
        "try:",
        "    resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))",
        "except (ValueError, OSError):",
        "    pass",
        "return len(bytearray(2 << 30))",
    ),
    "maps memory that is shared": (
        "import mmap",
        "shared, megabyte = mmap.mmap(-1, 2 << 30), b'x' * (1 << 20)",
        "for _ in range(2 << 10):",
        "    shared.write(megabyte)",
        f"return {STATES}",
    ),
    "lets its children take it": (
        "import os, time",
        "for _ in range(6):",
        "    if os.fork() == 0:",
        "        kept = bytearray(300 << 20)",
        "        kept[:: 4096] = b'x' * (300 << 8)",
        "        time.sleep(30)",
        "        os._exit(0)",
        "time.sleep(30)",
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the judge's caps are Linux's")
@pytest.mark.parametrize("way", LARGE)
def test_memory_is_bounded_over_mappings_and_processes(way):
    assert judged(LARGE[way]).outcome == "memory"


@pytest.mark.skipif(sys.platform != "linux", reason="the judge's caps are Linux's")
def test_a_flood_of_processes_is_ended():
    assert judged(["import os, time", "while True:", "    os.fork() or time.sleep(60)"]).outcome == "processes"


@pytest.mark.parametrize(
    "text",
    ["x = 1\n" * 500_000, "x = a" + ".b" * 100_000 + "\n", "x = " + "[" * 50_000 + "]" * 50_000 + "\n"],
    ids=["3 MB", "100,000 dots", "deeply nested"],
)
def test_a_monstrous_source_is_a_result_in_seconds(text):
    result = judge(EXERCISE, text + source(["return {}"]), seed=SEED)
    assert (result.score, result.outcome) == (0, "crash")


def test_what_reaches_around_is_flagged():
    flags = judged(["import gc, mmap, sys", "sys._getframe(), sys.modules, open('/dev/null')", "return {}"]).flags
    assert set(flags) == {f"uses {name}" for name in ("gc", "mmap", "sys._getframe", "sys.modules", "open")}


def test_the_next_student_is_graded_after_all_of_that():
    solution = (ROOT / "solutions/lab01.py").read_text("utf-8")
    assert judge(EXERCISE, solution, seed=SEED).score == 1
