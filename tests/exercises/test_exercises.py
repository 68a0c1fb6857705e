"""What `check`, `grade` and `close` say, and what they can't be talked into."""

import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from toy.exercises import lab90

from labs_utils.exercises import attempts, check, close, find, grade
from labs_utils.exercises.attempts import report_of
from labs_utils.exercises.contract import Exercise, Mark, exercises_of, labs
from labs_utils.exercises.forbidden import forbidden_uses
from labs_utils.exercises.marking import exercise_of_situations, mean_mark
from labs_utils.exercises.plain import NotPlain, load, plain, save
from labs_utils.figures import display

TOY = "toy.exercises"


def right(values):
    return sum(value * value for value in values) / len(values)


def graded(fn, exercise=lab90.mean_square):
    return grade(exercise, fn, np.random.default_rng(0))


class AlwaysEqual:
    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.0


def endless():
    nested = []
    nested.append(nested)
    return nested


class OwnArray(np.ndarray):
    pass


def test_importing_the_exercises_loads_neither_torch_nor_matplotlib():
    code = "import sys, labs_utils.exercises; print({'torch', 'matplotlib', 'IPython'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_an_unknown_exercise_is_one_sentence_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'lab90.nothing' is not an exercise; known: lab90.mean_square, lab90"):
        find("lab90.nothing", TOY)
    with pytest.raises(ValueError, match="known: .*lab91.attention"):
        find("lab77.nothing", TOY)


@pytest.mark.parametrize("exercise", [each for lab in labs() for each in exercises_of(lab)], ids=lambda each: each.id)
def test_an_exercise_says_how_long_it_takes_how_hard_it_is_and_why_it_works(exercise):
    assert 5 <= exercise.minutes <= 40 and exercise.difficulty in ("easy", "medium", "hard")
    assert len(re.findall(r"[^.]+\.(?: |$)", exercise.why)) == 2
    assert len(exercise.hints) == len(set(exercise.hints.values())) >= 3


def test_passing_says_why_it_works():
    exercise = replace(lab90.mean_square, id="lab90.squares", why="Squares add up. A mean divides once.")
    assert "why it works: Squares add up. A mean divides once." in report_of(exercise, graded(right, exercise))
    assert "why it works" not in report_of(exercise, graded(lambda values: 0.0, exercise))


def test_the_right_function_passes():
    assert graded(right).outcome == "passed"
    assert graded(right).score == 1.0


def test_a_case_gives_the_same_draws_for_the_same_seed_and_others_for_another():
    first, again, other = (lab90.extremes.draw(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        True,
        float("nan"),
        "14.2",
        AlwaysEqual(),
        np.float64(3.0),
        np.array(3.0),
        np.array(3.0).view(OwnArray),
        [[1.0]] * 1000,
        endless(),
        {"__numpy__": "0"},
        {1: 2},
        10**400,
        print,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("exercise", [lab90.mean_square, lab90.extremes], ids=lambda exercise: exercise.id)
def test_garbage_never_scores_and_never_breaks_the_comparison(exercise, garbage):
    result = graded(lambda values: garbage, exercise)
    assert result.score == 0 and result.outcome in ("wrong", "crash")


def test_an_answer_that_is_always_equal_is_refused_before_a_careless_comparison_sees_it():
    careless = replace(lab90.mean_square, compare=lambda case, answer, truth: Mark(float(answer == truth), ""))
    assert graded(lambda values: AlwaysEqual(), careless).score == 0


@pytest.mark.parametrize("score", [2.0, -1.0, float("nan"), None])
def test_a_comparison_that_gives_no_score_scores_nothing(score):
    result = graded(right, replace(lab90.mean_square, compare=lambda *_: Mark(score, "")))
    assert result.score == 0 and result.outcome == "wrong"


def test_an_oracle_that_fails_is_not_the_students_fault():
    def broken(case):
        raise LookupError("ours")

    with pytest.raises(LookupError):
        graded(right, replace(lab90.mean_square, truth=broken))


def test_a_function_that_changes_its_input_changes_no_truth():
    def emptying(values):
        answer = right(values)
        values[:] = [0] * len(values)
        return answer

    assert graded(emptying).score == 1


def test_half_of_the_parts_is_half_of_the_score():
    result = graded(lambda values: {"low": float(values.min()), "high": 99.0}, lab90.extremes)
    assert (result.score, result.outcome) == (0.5, "partly")
    assert "high: expected" in result.message and "got 99" in result.message


def test_a_stub_is_not_attempted():
    def stub(values):
        raise NotImplementedError

    assert (graded(stub).score, graded(stub).outcome) == (0.0, "not attempted")


def test_an_operator_that_torch_does_not_implement_is_not_an_unattempted_exercise():
    def unsupported(values):
        raise NotImplementedError("Could not run 'aten::add' with arguments from the 'Meta' backend")

    assert graded(unsupported).outcome == "crash"


def test_an_exception_names_the_students_own_line():
    def divides(values):
        return np.linalg.inv(np.zeros((2, 2)))

    message = graded(divides).message
    assert "LinAlgError" in message and "return np.linalg.inv(np.zeros((2, 2)))" in message


@pytest.mark.parametrize("stop", [SystemExit(0), MemoryError(), RecursionError("deep")])
def test_whatever_a_function_raises_is_an_outcome(stop):
    def stops(values):
        raise stop

    assert graded(stops).outcome == ("memory" if isinstance(stop, MemoryError) else "crash")


def test_interrupting_the_kernel_still_interrupts():
    def interrupted(values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graded(interrupted)


def test_check_prints_and_returns_nothing(capsys):
    assert check("lab90.mean_square", right, package=TOY) is None
    assert capsys.readouterr().out == "lab90.mean_square: passed. All 4 cases are right.\n"


def test_check_shows_case_expected_and_got_and_the_hint_of_what_went_wrong(capsys):
    shown = []
    for wrong in (lambda values: (sum(values) / len(values)) ** 2, lambda values: sum(v * v for v in values)):
        for _ in range(2):  # by cause, never by attempt
            check("lab90.mean_square", wrong, package=TOY)
            shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and shown[2] == shown[3]
    assert "Case 1 of 4: expected" in shown[0] and ", got " in shown[0] and "the case: values = [" in shown[0]
    assert "hint: Square before you average." in shown[0] and "hint: Divide by len(values)." in shown[2]


def test_a_mistake_without_a_name_has_no_hint(capsys):
    check("lab90.mean_square", lambda values: -1.0, package=TOY)
    assert "hint" not in capsys.readouterr().out


def test_check_stops_a_loop_that_never_ends(capsys, monkeypatch):
    monkeypatch.setattr(attempts, "CHECK_SECONDS", 0.2)

    def endless(values):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    check("lab90.mean_square", endless, package=TOY)
    assert "lab90.mean_square: timeout. " in capsys.readouterr().out


def test_check_shows_control_characters_escaped_and_long_messages_cut(capsys):
    def colourful(values):
        raise ValueError("\x1b[31mred" + "!" * 10_000)

    check("lab90.mean_square", colourful, package=TOY)
    shown = capsys.readouterr().out
    assert "\\x1b[31mred!!" in shown and "\x1b" not in shown and len(shown) < 1500


def test_check_survives_an_error_that_cannot_be_shown(capsys):
    class Unspeakable(Exception):
        def __str__(self):
            raise self

    def raises(values):
        raise Unspeakable

    check("lab90.mean_square", raises, package=TOY)
    assert "Unspeakable: an error that can't be shown" in capsys.readouterr().out


def test_check_lets_the_notebook_go_on_after_a_stub(capsys):
    def stub(values):
        raise NotImplementedError

    check("lab90.mean_square", stub, package=TOY)
    assert "not attempted" in capsys.readouterr().out


def test_only_the_first_stub_is_told_what_that_means(capsys, monkeypatch):
    def stub(*args):
        raise NotImplementedError

    monkeypatch.setattr(display, "_first", {})
    for exercise_id in ("lab90.mean_square", "lab90.extremes"):
        check(exercise_id, stub, package=TOY)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "lab90.mean_square: not attempted. The function is still a stub."
    assert second == "lab90.extremes: still a stub."


@pytest.mark.parametrize("error", [NotImplementedError, ValueError])
def test_strict_checks_raise_below_full_marks(monkeypatch, error):
    def raises(values):
        raise error

    monkeypatch.setenv("LABS_STRICT", "1")
    check("lab90.mean_square", right, package=TOY)
    with pytest.raises(AssertionError, match="lab90.mean_square: (not attempted|crash)"):
        check("lab90.mean_square", raises, package=TOY)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnumpy.mean(v)",
        "from numpy import mean as average",
        "from statistics import fmean",
        "import statistics as s",
        "getattr(numpy, 'numpy.mean')",
        "    def indented():\n        return numpy.mean(1)",
    ],
)
def test_forbidden_names_are_flagged(source):
    assert forbidden_uses(lab90.mean_square, source)


@pytest.mark.parametrize(
    "source", ["values.mean()", "meaning = 1", "'''Don't call numpy.mean here.'''", "def (", "(" * 9999, "\0"]
)
def test_other_names_are_not_flagged_and_no_source_breaks_the_scan(source):
    assert forbidden_uses(lab90.mean_square, source) == ()


def test_a_forbidden_name_is_flagged_but_not_failed():
    def library(values):
        import statistics

        return statistics.fmean(value * value for value in values)

    assert graded(library).score == 1 and graded(library).flags == ("uses statistics",)


def test_close_wants_the_same_shape_and_dtype_before_the_same_values():
    truth = np.array([1.0, 2.0])
    assert close(None, truth.copy(), truth) == Mark(1.0, "as expected")
    assert close(None, truth.astype(np.float32), truth) == Mark(0.0, "expected dtype float64, got float32")
    assert close(None, truth[None], truth) == Mark(0.0, "expected shape (2,), got (1, 2)")
    assert close(None, [1.0, 2.0], truth) == Mark(0.0, "expected a numpy.ndarray, got a list")
    assert close(None, "2", 2) == Mark(0.0, "expected an int, got a str")
    assert close(None, truth + [0, 0.5], truth, rel=0.1)[1] == "1 of 2 values differ; at [1] expected 2, got 2.5"
    assert close(None, truth + [0, 0.5], truth, rel=0.3)[0] == 1
    assert close(None, truth * np.nan, truth * np.nan)[0] == 0


@pytest.mark.parametrize("as_number", ["np.float64", "np.array", "torch.tensor", "np.int64", "float"])
def test_a_number_is_a_number_whoever_made_it(as_number):
    pytest.importorskip("torch")
    module, _, name = as_number.rpartition(".")
    number = getattr(sys.modules[{"np": "numpy", "": "builtins"}.get(module, module)], name)
    whole = Exercise(
        id="lab90.whole",
        points=1,
        draw=lambda rng: {"n": int(rng.integers(9))},
        call=lambda fn, case: {"alone": fn(case["n"]), "in a list": [fn(case["n"])], "array": np.ones(1)},
        truth=lambda case: {"alone": case["n"] + 1, "in a list": [case["n"] + 1], "array": np.ones(1)},
        compare=close,
    )
    assert graded(lambda n: number(n + 1), whole).score == 1
    result = graded(lambda n: number(n + 3), whole)
    assert result.score == pytest.approx(1 / 3) and "alone: expected 8, got 10" in result.message


def test_an_array_with_dimensions_is_no_number_and_a_number_no_array():
    assert "expected a float, got a numpy.ndarray" in graded(lambda values: np.array([right(values)])).message
    wanted = replace(lab90.extremes, truth=lambda case: np.array(1.0))
    assert "expected a numpy.ndarray, got a float" in graded(lambda values: 1.0, wanted).message
    assert graded(lambda values: np.array(1.0), wanted).score == 1


def test_close_reads_nested_answers():
    truth = {"a": [1, {"b": 2.0}], "c": "full"}
    assert close(None, {"a": [1, {"b": 2.0}], "c": "full"}, truth)[0] == 1
    assert close(None, {"a": [1, {"b": 3.0}], "c": "full"}, truth) == Mark(0.5, "a: at 1 at 'b' expected 2, got 3")
    assert close(None, {"a": [1]}, truth) == Mark(0.0, "expected the keys a, c, got a")


def test_plain_data_survives_its_files(tmp_path):
    torch = pytest.importorskip("torch")
    value = plain(
        {
            "numbers": (1, 2.5, None, True, "文"),
            "array": np.arange(6, dtype=np.int16).reshape(2, 3).T,
            "tensor": torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True).t(),
            "scalar": torch.tensor(3),
        }
    )
    save(value, tmp_path / "value")
    back = load(tmp_path / "value")
    assert back["numbers"] == [1, 2.5, None, True, "文"]
    assert close(None, back, value)[0] == 1 and back["tensor"].dtype == torch.bfloat16


class OwnDict(dict):
    def items(self):
        return [("right", True)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.longdouble(1.5), 1.5),
        (np.int16(3), 3),
        (np.bool_(True), True),
        (Fraction(3, 2), 1.5),
        (np.str_("loss"), "loss"),
        (Counter(a=2), {"a": 2}),
        (defaultdict(int, a=2), {"a": 2}),
        (MappingProxyType({"a": 2}), {"a": 2}),
        (OwnDict(right=False), {"right": False}),
        (range(3), [0, 1, 2]),
        ((1, (2, 3)), [1, [2, 3]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_natural_forms_become_plain_types(value, expected):
    made = plain(value)
    assert made == expected and type(made) is type(expected)


def test_subclasses_of_arrays_and_tensors_become_plain_ones():
    torch = pytest.importorskip("torch")
    tensor, array = plain(torch.nn.Parameter(torch.ones(1))), plain(np.ones(1).view(OwnArray))
    assert type(tensor) is torch.Tensor and type(array) is np.ndarray and tensor.item() == array.item() == 1


@pytest.mark.parametrize("value", [2**63, {1: 2}, {1, 2}, print, 1j, np.complex64(1), np.array(["a"])], ids=repr)
def test_what_is_no_data_is_not_plain(value):
    with pytest.raises(NotPlain):
        plain(value)


def test_a_refusal_shows_where_numbers_differ():
    assert close(None, 4.0, 4.0000001).sentence == "expected 4.0000001, got 4.0"


def test_files_that_are_links_or_too_large_are_not_read(tmp_path):
    save([1], tmp_path / "real")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(2**40)
    for name in ("link", "endless", "large", "missing"):
        with pytest.raises((OSError, ValueError)):
            load(tmp_path / name)


def doubled(**changes):
    """An exercise of two situations, whose `call` does arithmetic with what the function returns."""
    functions = {"call": lambda fn, value: fn(value) + 0, "truth": lambda value: 2 * value, "compare": close}
    fields = {"id": "lab90.doubled", "points": 1, "draw": lambda rng: {"small": 1, "large": 10**6}}
    return exercise_of_situations(**{**fields, **functions, **changes})


def test_a_forgotten_return_is_named():
    namespace = {}
    exec("def forgetful(value): pass", namespace)  # in a file of its own, as a notebook's cell is
    result = graded(namespace["forgetful"], doubled())
    assert result.outcome == "crash" and "your function returned None: is a `return` missing?" in result.message


def test_the_situation_that_is_shown_is_the_one_that_failed():
    result = graded(lambda value: 2 if value == 1 else 0, doubled())
    assert (result.score, result.message) == (0.5, "Case 1 of 4: large: expected 2,000,000, got 0")
    assert "the case: large = 1000000" in report_of(doubled(), result)


def test_situations_can_be_made_of_a_case():
    exercise = doubled(draw=lambda rng: [1, 10**6], situations=lambda case: {f"of {n}": n for n in case})
    assert graded(lambda value: 2 * value, exercise).outcome == "passed"
    assert graded(lambda value: 2, exercise).message == "Case 1 of 4: of 1000000: expected 2,000,000, got 2"


def test_a_mean_keeps_the_sentence_and_the_cause_of_the_first_mistake():
    marks = {"a": Mark(1.0, "as expected"), "b": Mark(0.5, "half", "halved"), "c": Mark(0.0, "nothing", "lost")}
    assert mean_mark(marks) == Mark(0.5, "b: half", "halved")
