"""`ModelShape`: the sizes of a model, read from a Hugging Face config, and the course's own presets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

Count = Annotated[int, Field(ge=1, le=2**24)]
MOST_PARAMETERS = 10**15
SUPPORTED_MODEL_TYPES = ("llama", "qwen2")


class ModelShape(BaseModel, frozen=True, strict=True, extra="ignore"):
    """The sizes of a dense Llama-shaped model, under their Hugging Face config names."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, Field(ge=1, le=1000)]
    num_attention_heads: Count
    num_key_value_heads: Count
    vocab_size: Count
    head_dim: Count
    tie_word_embeddings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_from_hugging_face_config(cls, config: Any) -> Any:
        """Fill what a Hugging Face config may leave out, and refuse what the formulas don't cover."""
        if not isinstance(config, dict):
            return config
        _refuse_other_architectures(config)
        heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
        filled = dict(config)
        if filled.get("num_key_value_heads") is None:
            filled["num_key_value_heads"] = heads
        if filled.get("head_dim") is None and _is_count(heads) and _is_count(hidden):
            if hidden % heads:
                raise ValueError(
                    f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; give head_dim"
                )
            filled["head_dim"] = hidden // heads
        return filled

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelShape:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need an even one")
        if self.parameters > MOST_PARAMETERS:
            raise ValueError(f"these sizes make {self.parameters:.1e} parameters; the most that is answered is 1e15")
        return self

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer: q, k, v, o, gate, up, down and two RMSNorm weights."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_attention_heads + self.num_key_value_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding matrix, which are also those of the language-model head."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters; a tied head shares the embedding's."""
        matrices = 1 if self.tie_word_embeddings else 2
        return self.num_hidden_layers * self.layer_parameters + matrices * self.embedding_parameters + self.hidden_size


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refuse_other_architectures(config: dict) -> None:
    """Raise `ValueError` where a config asks for tensors that a plain Llama doesn't have."""
    if config.get("model_type", "llama") not in SUPPORTED_MODEL_TYPES:
        raise ValueError(f"model_type {short(config['model_type'])} is not one of {', '.join(SUPPORTED_MODEL_TYPES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {short(config['hidden_act'])} is not 'silu'")
    for field in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(field):
            raise ValueError(f"{field} is set, which no formula here covers; remove it")


def short(value: Any) -> str:
    """A value as an error's sentence shows it: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _shape(hidden, intermediate, layers, heads, kv_heads, vocab, tied=False) -> ModelShape:
    return ModelShape(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        tie_word_embeddings=tied,
    )


PRESETS = {
    "tiny": _shape(256, 688, 4, 8, 4, 4096),
    "llama-125m": _shape(768, 2048, 12, 12, 12, 32000),
    "llama-3.2-1b": _shape(2048, 8192, 16, 32, 8, 128256, tied=True),
    "llama-3.1-8b": _shape(4096, 14336, 32, 32, 8, 128256),
}
TINY, LLAMA_125M, LLAMA_1B, LLAMA_8B = PRESETS.values()
