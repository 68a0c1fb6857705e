"""A Hugging Face config as a run's model: it is answered rightly, or refused in a sentence that names the key."""

import json
from functools import cache
from unittest import mock

import pytest
import torch
import transformers
from helpers import QUICK, SHAPE, VARIANTS, dry_variant, phase_peaks, small_run

from labs_utils.answers.dry_run import dry_run
from labs_utils.model_config import (
    ARCHITECTURES,
    FAMILIES,
    FAMILY_KEYS,
    IGNORED,
    IGNORED_KEYS,
    LABELS,
    PLAIN,
    SIZES,
    SPECIAL,
    SPECIAL_OF,
)
from labs_utils.run import LLAMA_8B, ModelShape, Run, RunError

SMALL = {**SHAPE, "tie_word_embeddings": False}
WIDE = {"num_hidden_layers": 2}  # every other size is the family's own default
NAMES = {  # a family's configuration class and its model
    "Llama": ("LlamaConfig", "LlamaForCausalLM"),
    "Qwen2.5": ("Qwen2Config", "Qwen2ForCausalLM"),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "Mistral": ("MistralConfig", "MistralForCausalLM"),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "Phi-3": ("Phi3Config", "Phi3ForCausalLM"),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "OLMo 2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "a reward model": ("LlamaConfig", "LlamaForSequenceClassification"),
}
ANSWERED = ("Llama", "Mistral")
LLAMA = {**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}


def configuration(family: str, sizes: dict):
    """A family's own configuration object, which writes the keys and values that a checkpoint's config.json has."""
    config, architecture = NAMES[family]
    extra = {"num_labels": 1} if architecture.endswith("Classification") else {}
    return getattr(transformers, config)(**sizes, **extra, architectures=[architecture])


def written(config) -> list[dict]:
    """What a configuration writes: every key, and those that `save_pretrained` keeps."""
    return [json.loads(config.to_json_string(use_diff=use_diff)) for use_diff in (False, True)]


@cache
def built_parameters(family: str, wide: bool) -> int:
    """How many parameters transformers gives the family's model."""
    with torch.device("meta"):
        model = getattr(transformers, NAMES[family][1])(configuration(family, WIDE if wide else SMALL))
    return sum(parameter.numel() for parameter in model.parameters())


def sentence(data: dict) -> str:
    """What a run is refused with."""
    with pytest.raises(RunError) as refused:
        Run.parse(data)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("removed", [(), ("model_type",), ("architectures",), ("model_type", "architectures")], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["small", "wide"])
@pytest.mark.parametrize("family", NAMES)
def test_of_ten_families_none_gets_a_wrong_number(family, wide, removed):
    for config in written(configuration(family, WIDE if wide else SMALL)):
        config = {key: value for key, value in config.items() if key not in removed}
        try:
            shape = Run.parse({"model": config, "seq_len": 512}).model
        except RunError:
            assert family not in ANSWERED or len(removed) == 2
        else:
            assert family in ANSWERED and shape.parameters == built_parameters(family, wide)


@pytest.mark.parametrize(
    "family, key",
    [
        ("Qwen2.5", "max_window_layers 28 "),
        ("Qwen3", "max_window_layers 28 "),
        ("Gemma 2", "attn_logit_softcapping 50.0 "),
        ("Gemma 3", "_sliding_window_pattern 6 "),
        ("Phi-3", "original_max_position_embeddings 4096 "),
        ("Mixtral", "num_experts_per_tok 2 "),
        ("OLMo 2", "initializer_range 0.02 is of a whole config, which must say its model_type"),
        ("Llama", "transformers_version '"),
        ("Mistral", "transformers_version '"),
        ("a reward model", "id2label {'0': 'LABEL_0'} is a classifier's"),
    ],
)
def test_a_key_still_tells_a_family_when_nothing_names_it(family, key):
    config = written(configuration(family, WIDE))[1]
    del config["model_type"], config["architectures"]
    if family == "OLMo 2":
        del config["transformers_version"]
    assert sentence({"model": config, "seq_len": 512}).startswith(f"model: {key}")


@pytest.mark.slow
def test_no_other_family_of_transformers_passes_for_a_llama():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    families = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*FAMILIES, "gemma4_assistant"})  # it has no defaults
    assert len(families) > 100
    for name in families:
        for config in written(CONFIG_MAPPING[name]()):
            nameless = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
            assert sentence({"model": config}) and sentence({"model": nameless})


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures ['LlamaForSequenceClassification'] is "),
        ({"architectures": "LlamaForCausalLM"}, "architectures 'LlamaForCausalLM' is not ['LlamaForCausalLM'] or "),
        ({"architectures": [["x"]]}, "architectures [['x']] is not "),
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not one of llama, mistral, which the formulas cover"),
        ({"model_type": ["llama"]}, "model_type ['llama'] is not one of "),
        ({"num_local_experts": 8}, "num_local_experts 8 asks for experts, which no formula here covers"),
        ({"num_experts": 64}, "num_experts 64 asks for experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4} asks for quantized weights "),
        ({"vision_config": {"depth": 2}}, "vision_config {'depth': 2} asks for a model beside the language model"),
        ({"text_config": {"hidden_size": 8}}, "text_config {'hidden_size': 8} asks for a model beside "),
        ({"attention_bias": True}, "attention_bias True asks for biases"),
        ({"mlp_bias": True}, "mlp_bias True asks for biases"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1 asks for dropout, whose masks take memory"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not 'silu', which the formulas cover"),
        ({"pretraining_tp": 2}, "pretraining_tp 2 is not 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor 0.5 is not 1"),
        ({"use_sliding_window": True}, "use_sliding_window True asks for a sliding window in some layers"),
        ({"sliding_window": -1}, "sliding_window -1 is not a number of tokens"),
        ({"sliding_window": "4096"}, "sliding_window '4096' is not a number of tokens"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types ['full_attention', 'linear_attention']"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map {'AutoModel': 'x.Y'} asks for code of its own"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_no_formula_covers_is_refused_with_its_key_and_value(changes, expected):
    assert sentence({"model": {**LLAMA, **changes}}).startswith(f"model: {expected}")
    if not changes.keys() & {"model_type", "architectures"}:
        assert sentence({"model": {**SHAPE, **changes}}).startswith(f"model: {expected}")


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": None}, {"sliding_window": 4097}, {"sliding_window": 64, "use_sliding_window": False},
        {"attention_bias": False, "mlp_bias": None, "attention_dropout": 0.0}, {"num_experts": 0},
        {"num_experts": None, "quantization_config": None, "text_config": {}}, {"layer_types": ["full_attention"] * 2},
        {"pretraining_tp": 1, "partial_rotary_factor": 1.0, "hidden_act": "silu"}, {"head_dim": None},
        {"final_logit_softcapping": None, "pruned_heads": {}, "auto_map": None}, {"something_new": None, "vision": {}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "llama3"}, "max_position_embeddings": 8},
        {"torch_dtype": "float16", "eos_token_id": [1, 2], "pad_token_id": None, "top_p": 0.6, "_name_or_path": "me/x"},
        {"num_labels": 2, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "architectures": None},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_plain_llama_has_and_what_bears_on_nothing_passes(changes):
    expected = ModelShape.model_validate(SHAPE)
    for base in (SHAPE, {**LLAMA, "num_labels": 3}):
        if base is SHAPE or "architectures" not in changes:
            assert Run.parse({"model": {**base, **changes}}).model == expected


@pytest.mark.parametrize(
    "key, advice",
    [
        ("num_attention_head", "is 'num_attention_heads' meant?"),
        ("tie_word_embedings", "is 'tie_word_embeddings' meant?"),
        ("residual_scale", "leave it out if it bears on neither"),
        ("x" * 99, "leave it out if it bears on neither"),
        (7, "leave it out if it bears on neither"),
    ],
)
def test_an_unknown_key_is_refused_even_where_it_says_false(key, advice):
    said = sentence({"model": {**SHAPE, key: False}})
    assert said.startswith(f"model: {repr(key)[:57]}") and len(said) < 200
    assert said.endswith(f" is not known here, nor whether it bears on memory or time; {advice}")


def test_every_key_is_in_one_table():
    tables = [*SIZES, *FAMILY_KEYS, *LABELS, *IGNORED_KEYS, *PLAIN, *SPECIAL_OF]
    words = [key for table in (IGNORED, SPECIAL) for keys in table.values() for key in keys.split()]
    assert len(tables) == len(set(tables)) and len(words) == len(IGNORED_KEYS) + len(SPECIAL_OF)


@pytest.mark.parametrize("family", ANSWERED)
def test_what_a_config_leaves_out_is_what_transformers_takes(family):
    sizes = {key: value for key, value in SHAPE.items() if key not in ("num_key_value_heads", "head_dim")}
    sizes |= {"hidden_size": 256, "num_attention_heads": 16}
    config = configuration(family, sizes)
    shape = ModelShape.model_validate({**sizes, "model_type": config.model_type})
    assert shape.model_dump() == {key: getattr(config, key) for key in SIZES}
    window = FAMILIES[config.model_type].get("sliding_window")
    assert window == getattr(config, "sliding_window", None)
    assert (shape.why_not_tokens(4096) is None) == (window is None)


def test_architectures_say_the_family_too():
    sizes = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | {"num_attention_heads": 16}
    for architecture, heads in zip(ARCHITECTURES, (16, 8), strict=True):
        config = {**sizes, "architectures": [architecture], "rms_norm_eps": 1e-5}
        assert ModelShape.model_validate(config).num_key_value_heads == heads


def with_window(window, **changes):
    return Run.parse({"model": {**LLAMA_8B.model_dump(), "sliding_window": window}, **changes})


def test_a_run_stays_below_its_models_sliding_window():
    refused = "model: sliding_window 512 needs a mask for {} tokens, which no formula here covers; take fewer"
    run = with_window(512, seq_len=511)
    for changes in ({"seq_len": 512}, {"seq_len": 9000}, {"seq_len": 300, "mode": "infer", "kv_len": 300}):
        with pytest.raises(RunError) as error:
            run.replace(**changes)
        tokens = changes["seq_len"] + changes.get("kv_len", 0)
        assert str(error.value) == refused.format(tokens)
    with pytest.raises(RunError):
        with_window(512)
    assert run.replace(seq_len=100).seq_len == 100


def test_a_sliding_window_that_nothing_reaches_leaves_the_run_as_it_is():
    with_one, without = with_window(512, seq_len=100), Run(model=LLAMA_8B, seq_len=100)
    assert with_one == without and hash(with_one.model) == hash(without.model)
    assert json.dumps(with_one.to_dict()) == json.dumps(without.to_dict())


def as_mistral(window):
    """Let `build_model` build a Mistral of the same sizes in place of the Llama."""
    from_config = transformers.AutoModelForCausalLM.from_config

    def build(config, **keywords):
        sizes = {key: getattr(config, key) for key in SIZES}
        model = from_config(transformers.MistralConfig(**sizes, sliding_window=window), **keywords)
        assert type(model).__name__ == "MistralForCausalLM"
        return model

    return mock.patch.object(transformers.AutoModelForCausalLM, "from_config", build)


@pytest.mark.parametrize("variant", ["sdpa", *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK[1:])])
def test_a_mistrals_step_takes_what_a_llamas_takes(variant):
    run = small_run(**VARIANTS[variant])
    for window in (None, run.seq_len + 1):
        with as_mistral(window):
            mistral = dry_run(run)
        assert (mistral.peak_bytes, mistral.parts) == (dry_variant(variant).peak_bytes, dry_variant(variant).parts)
        assert phase_peaks(mistral) == phase_peaks(dry_variant(variant))


def test_a_window_as_long_as_the_sequence_makes_a_mistral_take_more():
    with as_mistral(small_run().seq_len):
        assert dry_run(small_run()).peak_bytes > dry_variant("sdpa").peak_bytes


def saved_bytes(model_class, **sizes) -> list[int]:
    """The size of each tensor that autograd saves in a real forward of a model in bf16."""
    saved = []
    model = model_class(model_class.config_class(**sizes)).bfloat16()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.nbytes), lambda nbytes: None):
        model(torch.arange(32)[None], labels=torch.arange(32)[None], use_cache=False)
    return saved


def test_a_real_mistral_saves_the_bytes_that_a_llama_saves():
    llama = saved_bytes(transformers.LlamaForCausalLM, **SMALL)
    assert len(llama) > 20 and sum(llama) > 10**5
    for window in (None, 33):
        assert saved_bytes(transformers.MistralForCausalLM, **SMALL, sliding_window=window) == llama
