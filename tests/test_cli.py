"""The `labs` command: good lines are answered in order, each bad one gets a sentence, and the exit code says which."""

import json
import subprocess
import sys

import pytest
from helpers import SHAPE
from typer.testing import CliRunner

from labs_utils.answer import Answer
from labs_utils.answer_table import describe
from labs_utils.answers.estimate import estimate
from labs_utils.cli import app
from labs_utils.run import Run

RUN = {"model": SHAPE, "seq_len": 64}


def labs(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture
def ask(tmp_path):
    """`ask(content, command, *options)`: the command's result on a file of that content, whose name is runs.jsonl."""

    def ask(content, command="estimate", *options):
        path = tmp_path / "runs.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode())
        return labs(command, "--runs", path, "--device", "H200", "--json", *options)

    return ask


def answers(result):
    return [Answer.model_validate(json.loads(line)) for line in result.stdout.splitlines()]


def sentences(result):
    """The lines on standard error, each a sentence of ours; a traceback would not be."""
    assert not isinstance(result.exception, Exception), result.exception
    lines = result.stderr.splitlines()
    assert all(line.startswith("labs: ") for line in lines)
    return lines


@pytest.mark.parametrize("command, method", [("estimate", "estimate"), ("dry-run", "dry_run")])
def test_json_is_one_answer_a_line_in_the_order_of_the_runs(ask, command, method):
    lengths = [64, 32, 48]
    result = ask([json.dumps({**RUN, "seq_len": length}) for length in lengths], command)
    assert result.exit_code == 0 and not result.stderr
    assert [answer.run.seq_len for answer in answers(result)] == lengths
    assert {(answer.method, answer.device, answer.outcome) for answer in answers(result)} == {(method, "H200", "ok")}


def test_an_answer_on_the_shell_is_the_one_in_python(ask):
    assert answers(ask([json.dumps(RUN)])) == [estimate(Run.parse(RUN), "H200")]


def test_a_dash_reads_standard_input():
    result = labs("estimate", "--runs", "-", "--device", "cpu", "--json", stdin=json.dumps(RUN))
    assert answers(result) == [estimate(Run.parse(RUN), "cpu")]


def test_an_object_whose_run_is_one_is_a_line_too(ask):
    result = ask([json.dumps({"run": RUN, "other": 1}), json.dumps({"other": [None], "run": {**RUN, "seq_len": 32}})])
    assert result.exit_code == 0
    assert [answer.run.seq_len for answer in answers(result)] == [64, 32]


def test_without_json_the_answers_are_a_table(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"model": "llama-3.1-8b"}\n{"mode": "infer"}\n')
    result = labs("estimate", "--runs", path, "--device", "T4")
    assert result.exit_code == 0
    for shown in ("Peak memory, GiB", "8,030M", "out of memory", "unsupported", "T4"):
        assert shown in result.stdout
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.stdout.splitlines()[0])


def test_a_run_is_described_by_what_sets_it_apart():
    run = Run(grad_accum=4, zero_stage=2, world_size=8, offload="optimizer", zero={"reduce_bucket_size": 5e7})
    words = "5M 1×4096 deepspeed 4 micro-steps stage 2 8 ranks offload optimizer reduce_bucket_size=5e+07"
    assert describe(run) == words and describe(Run(padded=True, loss_kernel="liger")) == "5M 1×4096 padded liger loss"


@pytest.mark.parametrize(
    "changes, outcome",
    [({"model": "llama-3.1-8b", "seq_len": 65536}, "out of memory"), ({"mode": "infer"}, "unsupported")],
)
def test_out_of_memory_and_unsupported_are_answers(ask, changes, outcome):
    result = ask([json.dumps({**RUN, **changes})])
    assert result.exit_code == 0 and not result.stderr
    assert [answer.outcome for answer in answers(result)] == [outcome]


BAD_LINES = {
    "an unknown field": ('{"sequence": 1}', "'sequence' is not a field of a run"),
    "a negative length": ('{"seq_len": -1}', "seq_len is -1"),
    "heads that don't divide": (json.dumps({"model": {**SHAPE, "num_key_value_heads": 3}}), "is not a multiple of"),
    "a billion layers": (json.dumps({"model": {**SHAPE, "num_hidden_layers": 10**9}}), "num_hidden_layers is 10000000"),
    "not a number": ('{"seq_len": NaN}', "seq_len is nan"),
    "a truncated line": ('{"seq_len": 10', "is not a complete JSON object"),
    "an array": ("[1, 2, 3]", "a run is a JSON object, not [1, 2, 3]"),
    "a number": ("7", "a run is a JSON object, not 7"),
    "a run that is none": ('{"run": "tiny"}', "a run is a JSON object, not 'tiny'"),
    "deep nesting": ("[" * 100_000, "nested too deeply"),
    "deep nesting of objects": ('{"a":' * 100_000, "nested too deeply"),
    "a number of too many digits": (f'{{"seq_len": {"9" * 5000}}}', "a number of too many digits"),
    "an unknown preset": ('{"model": "gpt-5"}', "'gpt-5' is not a preset"),
    "half a character": ('{"\\ud800": 1}', "'\\ud800'"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_one_sentence_that_names_file_and_line_and_the_others_are_answered(ask, case):
    line, what = BAD_LINES[case]
    result = ask([json.dumps(RUN), line, "", json.dumps({**RUN, "seq_len": 32})])
    (sentence,) = sentences(result)
    assert result.exit_code == 2
    assert "runs.jsonl, line 2: " in sentence and what in sentence
    assert [answer.run.seq_len for answer in answers(result)] == [64, 32]


@pytest.mark.parametrize(
    "content, what",
    [(b"", "holds no run"), (b"\n \n\n", "holds no run"), (bytes(range(256)), "is a binary file")],
    ids=["empty", "blank", "binary"],
)
def test_a_file_without_runs_is_one_sentence(ask, content, what):
    result = ask(content)
    (sentence,) = sentences(result)
    assert result.exit_code == 2 and what in sentence and not result.stdout


def test_every_bad_line_gets_its_own_sentence(ask):
    result = ask(["{", "[]", '{"a": 1}'])
    assert [sentence.split(": ")[1].split(", ")[-1] for sentence in sentences(result)] == ["line 1", "line 2", "line 3"]
    assert result.exit_code == 2 and not result.stdout


@pytest.mark.parametrize("command", ["estimate", "dry-run"])
def test_a_missing_file_a_folder_and_an_unknown_device_are_one_sentence(tmp_path, command):
    for runs, device, what in [
        (tmp_path / "none.jsonl", "cpu", "none.jsonl can't be read: no such file"),
        (tmp_path, "cpu", "can't be read: is a directory"),
        ("-", "H2000", "'H2000' is not a device in data/gpus.csv; known: "),
    ]:
        result = labs(command, "--runs", runs, "--device", device, stdin=json.dumps(RUN))
        (sentence,) = sentences(result)
        assert result.exit_code == 2 and what in sentence and not result.stdout


def test_the_real_command_prints_answers_on_one_stream_and_sentences_on_the_other():
    command = [sys.executable, "-m", "labs_utils.cli", "estimate", "--runs", "-", "--device", "cpu", "--json"]
    lines = "\n".join([json.dumps(RUN), '{"大": 1}', json.dumps({**RUN, "seq_len": 32})])
    done = subprocess.run(command, input=lines.encode(), capture_output=True)
    assert done.returncode == 2
    assert [json.loads(line)["run"]["seq_len"] for line in done.stdout.splitlines()] == [64, 32]
    assert done.stderr.decode().startswith("labs: standard input, line 2: '大' is not a field of a run")
