"""The judge, with real child processes: what counts, what is capped, and that nothing stays behind."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest
from places import TOY

from labs_utils.exercises import judge as judging
from labs_utils.exercises.judge import judge
from labs_utils.pages.fill import solutions, wrong_answers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the judge's caps are Linux's")

MIB = 2**20
RIGHT = "def mean_square(values):\n    return sum(v * v for v in values) / len(values)\n"


def judged(source, exercise_id="lab90.mean_square", **options):
    options = {"seed": 7, "cases": 2, "memory_bytes": 128 * MIB, "seconds": 20, "package": "toy.exercises"} | options
    return judge(exercise_id, source, **options)


def body(*lines):
    """The source of `mean_square` with these lines before the right answer."""
    return "\n    ".join(["def mean_square(values):", *lines, "return sum(v * v for v in values) / len(values)"])


def test_the_right_source_passes():
    assert judged(RIGHT).outcome == "passed"


@pytest.mark.parametrize("made", ["numpy.array(mean)", "torch.tensor(mean, dtype=torch.float64)"])
def test_numbers_of_libraries_count_as_numbers(made):
    source = f"{RIGHT.replace('return', 'mean =')}    import numpy, torch\n    return {made}\n"
    assert judged(source, memory_bytes=4096 * MIB).outcome == "passed"  # importing torch with CUDA takes much


def test_fresh_seeds_make_hard_coded_answers_wrong():
    seen = judged("def mean_square(values):\n    return 1 / 0", cases=1)
    answer = sum(value**2 for value in seen.case["values"]) / 5
    hard_coded = f"def mean_square(values):\n    return {answer}"
    assert judged(hard_coded, cases=1).score == 1
    assert judged(hard_coded, cases=1, seed=8).score == 0


def test_a_stub_and_a_missing_function_are_not_attempted():
    assert judged("def mean_square(values):\n    raise NotImplementedError").outcome == "not attempted"
    assert "no function called mean_square" in judged("def other():\n    pass").message


@pytest.mark.parametrize(
    "source, said",
    [
        ("def mean_square(values):\n    return values[99]", "IndexError: list index out of range, at line 2 of your"),
        ("def mean_square(values:\n    pass", "SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("\0", "null bytes"),
        (body("import sys", "sys.exit(0)"), "SystemExit"),
        (body("import os", "os._exit(0)"), "exit code 0"),
        (body("import os, signal", "os.kill(os.getpid(), signal.SIGSEGV)"), "SIGSEGV"),
        (body("raise KeyboardInterrupt"), "before it answered"),
        ("import sys\nsys.exit()", "SystemExit"),
    ],
)
def test_a_program_that_stops_is_a_crash_with_a_sentence(source, said):
    result = judged(source)
    assert (result.score, result.outcome) == (0.0, "crash") and said in result.message


def test_a_memory_property_is_enforced_by_the_cap():
    source = solutions(TOY / "solutions" / "lab90.py")["lab90.mean_distance"]
    mistakes = wrong_answers(TOY / "wrong_answers" / "lab90.py")
    naive = next(mistake for mistake in mistakes if mistake.label == "memory_holds_all_pairs")
    assert judged(source, "lab90.mean_distance").outcome == "passed"
    assert judged(naive.source, "lab90.mean_distance").outcome == "memory"
    assert judged(naive.source, "lab90.mean_distance", memory_bytes=1024 * MIB).outcome == "passed"


# The cap is exact to what numpy and the interpreter take for themselves while the case runs: under 4 MiB.
@pytest.mark.parametrize("take_mib, outcome", [(60, "passed"), (65, "memory")])
def test_the_cap_counts_bytes_beyond_what_the_libraries_use(take_mib, outcome):
    assert judged(body(f"bytearray({take_mib} << 20)"), memory_bytes=64 * MIB).outcome == outcome


ATTENTION = """
import torch
def attention(queries):
    return torch.cat([(rows @ queries.t()).softmax(-1) @ queries for rows in queries.split({rows})])
"""


@pytest.mark.parametrize("rows, outcome", [(64, "passed"), (8192, "memory")])
def test_the_cap_bites_at_a_known_size_with_torch_imported(rows, outcome):
    source = ATTENTION.format(rows=rows)
    assert judged(source, "lab91.attention", cases=1, memory_bytes=64 * MIB).outcome == outcome


@pytest.mark.parametrize(
    "lines",
    [
        ["while True: pass"],
        ["import time", "time.sleep(600)"],
        ["while True:", "    try:", "        while True: pass", "    except BaseException: pass"],
        ["import signal", "for n in set(range(1, 32)) - {9, 19}: signal.signal(n, signal.SIG_IGN)", "while True: pass"],
    ],
    ids=["loop", "sleep", "swallows", "ignores signals"],
)
def test_a_program_that_never_ends_is_a_timeout(lines):
    begun = time.monotonic()
    result = judged(body(*lines), seconds=0.5)
    assert (result.outcome, result.message) == ("timeout", "Case 1 of 2: no answer within 0.5 seconds")
    assert time.monotonic() - begun < 15  # start-up on a busy machine, and 0.5 s


def test_what_was_answered_before_the_end_counts():
    dies_second = "calls = []\n" + body("calls.append(1)", "if len(calls) == 2: __import__('os').abort()")
    result = judged(dies_second, cases=4)
    assert (result.score, result.outcome) == (0.25, "crash") and "SIGABRT" in result.message


def test_printing_fifty_megabytes_is_harmless():
    assert judged(body("print('x' * 50_000_000)")).outcome == "passed"


@pytest.mark.parametrize(
    "answer", ["float('nan')", "None", "Always()", "[[0]] * 10**7", "'1' * 10**8", "{'__numpy__': '0'}", "10**5000"]
)
def test_garbage_scores_nothing(answer):
    always = "class Always(float):\n    __eq__ = __ge__ = __le__ = lambda *_: True\n"
    assert judged(f"{always}def mean_square(values):\n    return {answer}").score == 0


def test_printing_or_claiming_a_score_gives_none():
    claims = body('print(\'{"score": 1.0, "outcome": "passed"}\')', "return None")
    assert judged(claims).outcome == "wrong"


@pytest.mark.parametrize(
    "files",
    [
        "os.mkfifo('answer-0.json')",
        "os.symlink('/dev/zero', 'answer-0.json')",
        "open('answer-0.json', 'w').write('[' * 10**6)",
        """open('answer-0.json', 'w').write('{"outcome": "passed", "answer": 1, "message": ""}')""",
        "open('answer-0.json', 'w').write('{\"score\": 1}')",
        "open('answer-0.torch', 'wb').write(b'no tensors')",
    ],
)
def test_answer_files_that_are_not_answers_count_as_none(files):
    result = judged(body("import os", files, "os._exit(0)"))
    assert (result.score, result.outcome) == (0.0, "crash")


def test_a_student_process_holds_neither_the_seed_nor_this_environment(monkeypatch):
    monkeypatch.setenv("LABS_SECRET", "31415926535")
    leaks = "any(b'31415926535' in open(f'/proc/self/{name}', 'rb').read() for name in ('cmdline', 'environ'))"
    assert judged(body(f"assert not {leaks}"), seed=31415926535).outcome == "passed"


def test_no_input_is_inherited():
    assert "EOFError" in judged(body("input()")).message


LEAVES_BEHIND = {
    "a fork": ["pid = os.fork()", "if pid == 0: time.sleep(600)"],
    "a program": ["pid = subprocess.Popen(['sleep', '600']).pid"],
}


@pytest.mark.parametrize("lines", LEAVES_BEHIND.values(), ids=LEAVES_BEHIND)
def test_a_process_that_sleeps_on_is_reaped(lines):
    result = judged(body("import os, subprocess, time", *lines, "raise RuntimeError(f'left {pid} behind')"), cases=1)
    assert ended(int(re.search(r"left (\d+) behind", result.message)[1]))


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def waiting_parent():
    """The number of the process that waits for the next source."""
    return judging._idle[-1].process.pid


def test_sources_have_one_parent_and_nothing_else_in_common():
    vandal = "import builtins, numpy, sys\nnumpy.mean = builtins.sum = None\nopen('left', 'w')\nleft = 1\n"
    spoiled, parent = judged(f"{vandal}def mean_square(values): return sum(values)"), waiting_parent()
    looks = "import os, numpy\nassert numpy.mean and sum and 'left' not in globals() and not os.path.exists('left')\n"
    result, same_parent = judged(looks + RIGHT), waiting_parent()
    assert (spoiled.outcome, result.outcome) == ("crash", "passed") and parent == same_parent


@pytest.mark.parametrize("sign", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.slow)])
def test_a_source_that_attacks_its_parent_loses_and_the_next_one_is_graded(sign, monkeypatch):
    monkeypatch.setattr(judging, "REPLY_SECONDS", 10)
    monkeypatch.setattr(judging, "END_SECONDS", 1)
    attack = f"import os, signal, time\nos.kill(os.getppid(), signal.{sign})\ntime.sleep(600)"
    assert judged(attack, seconds=1).score == 0
    assert judged(RIGHT).outcome == "passed"


JUDGES = """
from labs_utils.exercises.judge import judge
judge("lab90.mean_square", {source!r}, seed=7, memory_bytes=2**27, package="toy.exercises")
"""


def test_nothing_is_left_when_the_judge_itself_is_killed(tmp_path):
    """But its temporary folder, which is here for that reason."""
    source = "import os, time\nopen('processes', 'w').write(f'{os.getpid()} {os.getppid()}')\ntime.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", JUDGES.format(source=source)], env=environment)

    def noted():
        return [pid for path in tmp_path.glob("labs-judge-*/processes") for pid in path.read_text().split()]

    assert within_seconds(60, lambda: len(noted()) == 2)
    processes = noted()
    killed.kill()
    killed.wait()
    assert all(ended(int(pid)) for pid in processes)


def within_seconds(seconds, holds):
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def ended(pid):
    return within_seconds(5, lambda: not is_running(pid))


def test_course_set_up_runs_before_the_cap_and_its_failure_is_not_the_students():
    assert judged("def mean_square(v):\n    return float(np.mean(np.square(v)))", setup="import numpy as np").score == 1
    with pytest.raises(RuntimeError, match="(?s)could not start its worker for lab90.mean_square: .*no_such_module"):
        judged(RIGHT, setup="import no_such_module")


def test_forbidden_names_are_flagged():
    flagged = judged("import statistics\n" + RIGHT)
    assert (flagged.score, flagged.flags) == (1.0, ("uses statistics",))


FORGED = """
import json, os, numpy
from safetensors.numpy import save_file
save_file({"0": numpy.ones(3)}, "answer-0.numpy")
with open("answer-0.json", "w") as file:
    json.dump({"outcome": {"__numpy__": "0"}, "answer": None, "message": ""}, file)
os._exit(0)
"""
NESTED = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nos._exit(0)\n"


@pytest.mark.parametrize("source", [FORGED, NESTED], ids=["a forged answer", "folders too deep"])
def test_no_file_that_a_student_leaves_stops_the_judge(source):
    result = judged(source)
    assert (result.score, result.outcome) == (0, "crash")
