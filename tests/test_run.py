"""A run: its defaults, what it takes and refuses, and how a file of runs is read."""

import json
import random
from typing import Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from labs_utils.run import LLAMA_8B, PRESETS, TINY, Run, RunError, read_runs

DEFAULT_LINE = """
{"model": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256, "head_dim": 128, "tie_word_embeddings": false},
 "mode": "train", "engine": "torch", "seq_len": 4096, "micro_batch": 1, "grad_accum": 1, "padded": false,
 "compile": false, "precision": "bf16", "optimizer": "adamw", "attention": "sdpa", "checkpointing": "none",
 "layer_kernels": "torch", "loss_kernel": "torch", "weights": "plain", "lora_rank": 0, "kv_len": 0, "zero_stage": 0,
 "world_size": 1, "offload": "none", "zero": {}}
"""
SHAPE = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 100
}  # fmt: skip
CHANGED = {
    "model": {**SHAPE, "num_key_value_heads": 3, "head_dim": 20, "tie_word_embeddings": True},
    "mode": "infer", "engine": "ddp", "seq_len": 1, "micro_batch": 3, "grad_accum": 2, "padded": True, "compile": True,
    "precision": "fp16-master", "optimizer": "adamw-8bit", "attention": "flash_attention_2", "checkpointing": "every-7",
    "layer_kernels": "liger", "loss_kernel": "liger", "weights": "nf4", "lora_rank": 8, "kv_len": 5, "zero_stage": 3,
    "world_size": 4, "offload": "all", "zero": {"reduce_bucket_size": 5e8, "overlap_comm": False, "more": [None, {}]},
}  # fmt: skip
NEEDED = {"kv_len": {"mode": "infer"}, "zero_stage": {"engine": "deepspeed"}}

LLAMA_8B_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
    "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
QWEN_7B_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip


def test_the_default_run_is_the_line_that_the_course_documents():
    assert json.dumps(Run(model=LLAMA_8B).to_dict()) == json.dumps(json.loads(DEFAULT_LINE))


@pytest.mark.parametrize("field", Run.model_fields)
def test_every_field_goes_to_json_and_back(field):
    run = Run.parse({**NEEDED.get(field, {}), field: CHANGED[field]})
    assert getattr(run, field) != Run.model_fields[field].default
    assert Run.parse(json.loads(json.dumps(run.to_dict()))) == run


LITERALS = {name: get_args(field.annotation) for name, field in Run.model_fields.items()
            if get_origin(field.annotation) is Literal}  # fmt: skip


@pytest.mark.parametrize("field, value", [(name, value) for name, values in LITERALS.items() for value in values])
def test_every_documented_value_is_taken(field, value):
    assert Run.parse({field: value}).to_dict()[field] == value


@pytest.mark.parametrize(
    "checkpointing, every",
    [("none", 0), ("full", 1), ("every-1", 1), ("every-4", 4), ("every-1000", 1000), ("keep-attention", 0)],
)
def test_checkpointing_says_of_how_many_layers_one_is_recomputed(checkpointing, every):
    assert Run(checkpointing=checkpointing).checkpoint_every == every


def test_the_8b_model_has_8_030_261_248_parameters():
    assert LLAMA_8B.parameters == 8_030_261_248


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_or_written_out(name):
    assert Run.parse({"model": name}) == Run(model=PRESETS[name]) == Run.parse({"model": PRESETS[name].model_dump()})


def test_a_tied_head_has_no_parameters_of_its_own():
    tied, untied = (Run.parse({"model": {**SHAPE, "tie_word_embeddings": tied}}).model for tied in (True, False))
    assert untied.parameters - tied.parameters == untied.embedding_parameters == 96 * 100


def test_llamas_own_config_is_the_preset():
    assert Run.parse({"model": LLAMA_8B_CONFIG}).model == LLAMA_8B


def test_a_qwen_config_is_refused_since_no_formula_counts_its_biases():
    with pytest.raises(RunError, match="^model: model_type 'qwen2' is not one of llama, mistral, "):
        Run.parse({"model": QWEN_7B_CONFIG})


def test_heads_and_head_dim_are_filled_in_as_transformers_does():
    for extra in ({}, {"num_key_value_heads": None, "head_dim": None}):
        model = Run.parse({"model": {**SHAPE, **extra}}).model
        assert (model.num_key_value_heads, model.head_dim) == (6, 16)
    assert Run.parse({"model": {**SHAPE, "num_attention_heads": 5, "head_dim": 16}}).model.head_dim == 16


@pytest.mark.parametrize(
    "data, sentence",
    [
        ([], "a run is a JSON object, not []"),
        ({"batch": 1}, "'batch' is not a field of a run; known: model, mode, engine, "),
        ({"seq_len": -4}, "seq_len is -4: input should be greater than or equal to 1"),
        ({"seq_len": 2**24 + 1}, "seq_len is 16777217: input should be less than or equal to 16777216"),
        ({"seq_len": "128"}, "seq_len is '128': input should be a valid integer"),
        ({"seq_len": 128.0}, "seq_len is 128.0: input should be a valid integer"),
        ({"seq_len": float("nan")}, "seq_len is nan: input should be a valid integer"),
        ({"seq_len": True}, "seq_len is True: input should be a valid integer"),
        ({"padded": 1}, "padded is 1: input should be a valid boolean"),
        ({"optimizer": "adam"}, "optimizer is 'adam': input should be 'adamw', "),
        ({"checkpointing": "every-0"}, "checkpointing: 'every-0' is not one of none, full, "),
        ({"checkpointing": "every-01"}, "checkpointing: 'every-01' is not one of none, full, "),
        ({"checkpointing": None}, "checkpointing: None is not one of none, full, "),
        ({"model": "llama-9b"}, "model: 'llama-9b' is not a preset; known: tiny, "),
        ({"model": {"hidden_size": 8}}, "model.intermediate_size is missing"),
        ({"model": {**SHAPE, "num_hidden_layers": 10**9}}, "model.num_hidden_layers is 1000000000: input should be "),
        ({"model": {**SHAPE, "num_attention_heads": 7}}, "model: hidden_size 96 is not a multiple of "),
        ({"model": {**SHAPE, "num_key_value_heads": 4}}, "model: num_attention_heads 6 is not a multiple of "),
        ({"model": {**SHAPE, "head_dim": 7}}, "model: head_dim 7 is odd; rotary embeddings need an even one"),
        ({"model": {**SHAPE, "num_hidden_layers": 1000, "hidden_size": 2**23, "intermediate_size": 2**24,
                    "head_dim": 16}}, "model: these sizes make 4.2e+17 parameters; the most that is answered is 1e15"),
        ({"kv_len": 3}, "kv_len 3 is for mode 'infer'; training keeps no cache"),
        ({"zero_stage": 1, "engine": "ddp"}, "zero_stage 1 needs engine 'deepspeed', not 'ddp'"),
        ({"zero_stage": 4}, "zero_stage is 4: input should be less than or equal to 3"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_cant_be_is_one_sentence_with_the_field_and_the_value(data, sentence):
    with pytest.raises(RunError) as refused:
        Run.parse(data)
    assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)


def test_a_zero_stage_means_deepspeed():
    assert Run.parse({"zero_stage": 2}).engine == "deepspeed"
    assert Run.parse({"zero_stage": 0}).engine == "torch"


def test_a_run_cant_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Run().seq_len = 1
    with pytest.raises(ValidationError, match="frozen"):
        TINY.hidden_size = 1


def test_a_changed_copy_is_checked_again():
    assert Run().replace(seq_len=7, model=LLAMA_8B) == Run(seq_len=7, model=LLAMA_8B)
    for changes in ({"seq_len": 0}, {"length": 7}, {"kv_len": 1}):
        with pytest.raises(RunError):
            Run().replace(**changes)


def test_a_micro_batch_has_as_many_tokens_as_its_sequences():
    assert Run(micro_batch=3, seq_len=100, grad_accum=2).tokens == 300


def read(*lines: bytes):
    return list(read_runs(lines, "runs.jsonl"))


def test_a_file_is_read_line_by_line_with_the_bad_lines_in_place():
    (first, good), (third, bad), (fourth, wrapped) = read(
        b'{"seq_len": 7}', b"  ", b'{"seq_len"', b'{"run": {}, "x": 1}'
    )
    assert (first, third, fourth) == (1, 3, 4)
    assert good == Run(seq_len=7) and wrapped == Run()
    assert str(bad).startswith("runs.jsonl, line 3: is not a complete JSON object (")


def test_byte_order_marks_and_windows_line_ends_are_taken():
    assert read(b'\xef\xbb\xbf{"seq_len": 7}\r\n') == [(1, Run(seq_len=7))]


@pytest.mark.parametrize(
    "line, what",
    [
        (b"\xff\xfe{}", "is not UTF-8 text"),
        (b'{"seq_len": 1', "is not a complete JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"seq_len": ' + b"1" * 5000 + b"}", "holds a number of too many digits"),
        (b"[1, 2]", "a run is a JSON object, not [1, 2]"),
        (b'{"run": 3}', "a run is a JSON object, not 3"),
        (b'{"a\\nb": 1}', "'a\\nb' is not a field of a run"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_line_that_is_no_run_says_where_and_why(line, what):
    ((_, error),) = read(line)
    assert isinstance(error, RunError)
    assert str(error).startswith("runs.jsonl, line 1: ") and what in str(error)


JUNK = [
    None, True, -1, 0, 10**30, -(2**63), 1.5, float("nan"), float("inf"), "", "\ud800", "\n\0\x1b[31m", "大模型",
    "x" * 9999, [], [[]], {}, {"run": {}}, [{"a": [None]}], "every-²", "every-" + "9" * 5000, {"hidden_size": "4096"},
]  # fmt: skip


def mutated(rng) -> bytes:
    """A run's line with some values, keys or bytes replaced, removed or added."""
    data = json.loads(DEFAULT_LINE)
    for _ in range(rng.randint(1, 3)):
        target = rng.choice([data, data, data["model"]]) if isinstance(data.get("model"), dict) else data
        key = rng.choice([*target, rng.choice(JUNK)])
        key = key if isinstance(key, str) else repr(key)
        target[key] = rng.choice(JUNK)
        if rng.random() < 0.2:
            del target[key]
    line = bytearray(json.dumps(rng.choice([data, data, data, {"run": data}, [data]])).encode())
    for _ in range(rng.choice([0, 0, 0, 1, 5])):
        line[rng.randrange(len(line))] = rng.randrange(256)
    return bytes(line[: rng.choice([None, None, None, rng.randrange(len(line))])])


def test_whatever_a_line_holds_only_a_run_or_one_sentence_comes_out():
    rng = random.Random(0)
    lines = [line for line in (mutated(rng) for _ in range(300)) if line.strip()]
    results = [result for _, result in read(*lines)]
    assert len(results) == len(lines) >= 290
    refused = [str(result) for result in results if isinstance(result, RunError)]
    taken = [result for result in results if isinstance(result, Run)]
    assert len(refused) + len(taken) == len(results) and len(refused) > 100 and len(taken) > 10
    assert all(sentence.isprintable() and len(sentence) < 500 for sentence in refused)
    assert all(json.dumps(run.to_dict()) for run in taken)
