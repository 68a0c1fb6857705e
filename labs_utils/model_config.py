"""Which keys of a Hugging Face config the formulas cover, which bear on nothing, and which are refused.

Every key is in one table below. One that is in none is refused: nobody has looked whether it takes memory or time.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "head_dim", "tie_word_embeddings",
)  # fmt: skip
FAMILIES = {  # the tensors of both are the same; what transformers takes where the config of one is silent
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
}
ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}
FAMILY_KEYS = ("model_type", "architectures", "sliding_window")
LABELS = ("num_labels", "id2label", "label2id", "problem_type")
WHOLE_CONFIG = ("transformers_version", "initializer_range", "rms_norm_eps", "use_cache")

# Whatever these say, a run of the course takes the same memory and time.
IGNORED = {
    "origin": "_name_or_path name_or_path _commit_hash transformers_version transformers.js_config is_llama_config "
    "unsloth_version unsloth_fixed",
    "weights' values": "initializer_range rms_norm_eps",
    "positions": "max_position_embeddings max_sequence_length rope_theta rope_scaling rope_parameters rope_interleaved",
    "what the run says": "torch_dtype dtype use_bfloat16 use_cache attn_implementation _attn_implementation "
    "_attn_implementation_autoset _attn_implementation_internal",
    "form of the output": "return_dict use_return_dict return_dict_in_generate output_scores tf_legacy_loss",
    "tokens": "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id "
    "decoder_start_token_id forced_bos_token_id forced_eos_token_id bad_words_ids suppress_tokens "
    "begin_suppress_tokens tokenizer_class prefix",
    "generation": "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
    "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size num_return_sequences remove_invalid_values exponential_decay_length_penalty",
    "tasks": "finetuning_task task_specific_params classifier_dropout",
}
# A plain Llama has these values, or none at all.
PLAIN = {"hidden_act": "silu", "hidden_activation": "silu", "pretraining_tp": 1, "partial_rotary_factor": 1}
# A plain Llama has none of these: null, false, 0 and what is empty pass.
SPECIAL = {
    "biases": "attention_bias mlp_bias qkv_bias use_qkv_bias use_bias bias",
    "dropout, whose masks take memory": "attention_dropout hidden_dropout activation_dropout dropout resid_pdrop "
    "embd_pdrop attn_pdrop hidden_dropout_prob attention_probs_dropout_prob",
    "experts": "num_local_experts num_experts n_routed_experts n_shared_experts num_shared_experts num_experts_per_tok "
    "moe_intermediate_size shared_expert_intermediate_size norm_topk_prob first_k_dense_replace decoder_sparse_step "
    "mlp_only_layers output_router_logits router_aux_loss_coef router_jitter_noise",
    "quantized weights (of a run, the field 'weights' says it)": "quantization_config compression_config",
    "checkpointing (of a run, the field 'checkpointing' says it)": "gradient_checkpointing",
    "a sliding window in some layers": "use_sliding_window sliding_window_pattern _sliding_window_pattern",
    "attention of another kind": "layer_types use_bidirectional_attention query_pre_attn_scalar clip_qkv q_lora_rank "
    "kv_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim",
    "norms of another kind": "use_qk_norm qk_norm qk_layernorm layer_norm_eps layer_norm_epsilon norm_eps",
    "capped logits": "final_logit_softcapping attn_logit_softcapping",
    "a model beside the language model": "text_config vision_config audio_config is_encoder_decoder is_decoder "
    "add_cross_attention cross_attention_hidden_size tie_encoder_decoder",
    "Qwen's layers": "max_window_layers",
    "Phi-3's layers": "original_max_position_embeddings",
    "layers run in pieces": "chunk_size_feed_forward pruned_heads torchscript",
    "tensors kept for the caller": "output_attentions output_hidden_states",
    "code of its own": "auto_map",
}
SPECIAL_OF = {key: what for what, keys in SPECIAL.items() for key in keys.split()}
IGNORED_KEYS = {key for keys in IGNORED.values() for key in keys.split()}
KNOWN = sorted({*SIZES, *FAMILY_KEYS, *LABELS, *IGNORED_KEYS, *PLAIN, *SPECIAL_OF})


def read_config(config: dict) -> tuple[dict, int | None]:
    """The sizes that a config gives, as it gives them, and its sliding window in tokens; None where it has none.

    `model_type` (or `architectures`) says the family: a Llama, or a Mistral, whose tensors are the same. A config of
    sizes is taken for a Llama's. A whole one, as transformers writes it, must say its family: OLMo 2's has no key and
    no value that couldn't be a Llama's, yet the model has other norms (transformers 5.24, `Olmo2Config`).

    Raises:
        ValueError: one sentence with the key and its value, for what no formula here covers and for an unknown key.

    >>> read_config({"model_type": "llama", "hidden_size": 64, "rope_theta": 1e4, "attention_bias": False})
    ({'hidden_size': 64}, None)
    >>> read_config({"hidden_size": 64, "num_local_experts": 8})
    Traceback (most recent call last):
    ValueError: num_local_experts 8 asks for experts, which no formula here covers
    """
    family = family_of(config)
    reasons = [why_not_key(key, value) for key, value in config.items()]
    reason = next(filter(None, reasons), None) or why_not_labels(config) or why_not_nameless(config, family)
    if reason:
        raise ValueError(reason)
    config = {**FAMILIES[family or "llama"], **config}
    return {key: config[key] for key in SIZES if key in config}, window_of(config)


def family_of(config: dict) -> str | None:
    """The family that `model_type` or `architectures` names; None if neither does. Raises `ValueError` for others."""
    named, architectures = config.get("model_type") or None, config.get("architectures") or []
    if named is not None and (not isinstance(named, str) or named not in FAMILIES):
        raise ValueError(f"model_type {short(named)} is not one of {', '.join(FAMILIES)}, which the formulas cover")
    if not isinstance(architectures, list) or any(each not in list(ARCHITECTURES) for each in architectures):
        known = " or ".join(f"['{name}']" for name in ARCHITECTURES)
        raise ValueError(f"architectures {short(architectures)} is not {known}, which the formulas cover")
    return named or next((ARCHITECTURES[each] for each in architectures), None)


def why_not_key(key: Any, value: Any) -> str | None:
    """Why a key can't have this value; None if it can, alone.

    >>> why_not_key("hidden_act", "gelu")
    "hidden_act 'gelu' is not 'silu', which the formulas cover"
    >>> why_not_key("num_attention_head", 8)
    "'num_attention_head' is not known here, nor whether it bears on memory or time; is 'num_attention_heads' meant?"
    """
    if is_nothing(value) or (key == "layer_types" and is_all_full(value)):
        return None
    if key in PLAIN:
        return None if value == PLAIN[key] else f"{key} {short(value)} is not {PLAIN[key]!r}, which the formulas cover"
    if key in SPECIAL_OF:
        return f"{key} {short(value)} asks for {SPECIAL_OF[key]}, which no formula here covers" if value else None
    if key in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
        factor = value.get("partial_rotary_factor")
        return (reason := why_not_key("partial_rotary_factor", factor)) and f"{key}.{reason}"
    return None if key in KNOWN else unknown(key)


def unknown(key: Any) -> str:
    """The sentence for a key that is in no table, with the nearest that is in one."""
    meant = get_close_matches(str(key), KNOWN, 1, cutoff=0.8)
    advice = f"is {meant[0]!r} meant?" if meant else "leave it out if it bears on neither"
    return f"{short(key)} is not known here, nor whether it bears on memory or time; {advice}"


def why_not_labels(config: dict) -> str | None:
    """Why a config that doesn't name its class seems to be a classifier's, such as a reward model's: it has no head.

    transformers writes two labels into the config of any model.
    """
    for key in LABELS if not config.get("architectures") else ():
        value = config.get(key)
        if value and (len(value) if isinstance(value, dict) else value) != 2:
            return f"{key} {short(value)} is a classifier's; if it is a language model's, add its architectures"
    return None


def why_not_nameless(config: dict, family: str | None) -> str | None:
    """Why a whole config can't go without the name of its family."""
    for key in WHOLE_CONFIG if family is None else ():
        if not is_nothing(config.get(key)):
            return f"{key} {short(config[key])} is of a whole config, which must say its model_type, such as 'llama'"
    return None


def window_of(config: dict) -> int | None:
    """The sliding window in tokens; None where there is none. Raises `ValueError` for what is no number of tokens."""
    window = config.get("sliding_window") or None
    if window is None or config.get("use_sliding_window") is False:
        return None
    if type(window) is not int or window < 0:
        raise ValueError(f"sliding_window {short(window)} is not a number of tokens")
    return window


def is_nothing(value: Any) -> bool:
    """Whether a value says nothing: null, or an empty text, list or object."""
    return value is None or value in ("", [], {})


def is_all_full(layer_types: Any) -> bool:
    """Whether every layer's attention is full."""
    return isinstance(layer_types, list) and all(each == "full_attention" for each in layer_types)


def short(value: Any) -> str:
    """A value as an error's sentence shows it: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
