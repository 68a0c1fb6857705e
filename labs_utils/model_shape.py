"""`ModelShape`: the sizes of a model, read from a Hugging Face config, and the course's own presets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from labs_utils.model_config import read_config

Count = Annotated[int, Field(ge=1, le=2**24)]
MOST_PARAMETERS = 10**15


class ModelShape(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The sizes of a dense Llama-shaped model, under their Hugging Face config names.

    What it is made from may be a whole config: `labs_utils.model_config` says which keys bear on nothing, and which are
    refused. Two shapes of the same sizes are equal.

    >>> ModelShape.model_validate({
    ...     "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    ...     "num_attention_heads": 4, "vocab_size": 500, "rms_norm_eps": 1e-5
    ... }).parameters
    164672
    """

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, Field(ge=1, le=1000)]
    num_attention_heads: Count
    num_key_value_heads: Count
    vocab_size: Count
    head_dim: Count
    tie_word_embeddings: bool = False
    _sliding_window: int | None = PrivateAttr(None)

    @model_validator(mode="wrap")
    @classmethod
    def _from_hugging_face_config(cls, config: Any, make: Callable[[Any], ModelShape]) -> ModelShape:
        if not isinstance(config, dict):
            return make(config)
        sizes, window = read_config(config)
        shape = make(filled(sizes))
        shape._sliding_window = window
        return shape

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelShape) and self.model_dump() == other.model_dump()

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

    def why_not_tokens(self, tokens: int) -> str | None:
        """Why sequences of so many tokens aren't covered: the config's sliding window would need a mask; else None.

        transformers 5.24 makes one for sequences as long as the window and longer (masking_utils.py,
        `_ignore_causal_mask_sdpa`), and a mask keeps flash attention away. Shorter ones take what a Llama's do.
        """
        window = self._sliding_window
        if window is None or tokens < window:
            return None
        return f"sliding_window {window} needs a mask for {tokens} tokens, which no formula here covers; take fewer"


def filled(sizes: dict) -> dict:
    """Sizes with those that a config may leave out, as transformers fills them in. Raises `ValueError`.

    >>> filled({"hidden_size": 96, "num_attention_heads": 6})
    {'hidden_size': 96, 'num_attention_heads': 6, 'num_key_value_heads': 6, 'head_dim': 16}
    """
    sizes, heads, hidden = dict(sizes), sizes.get("num_attention_heads"), sizes.get("hidden_size")
    if sizes.get("num_key_value_heads") is None:
        sizes["num_key_value_heads"] = heads
    if sizes.get("head_dim") is None and is_count(heads) and is_count(hidden):
        if hidden % heads:
            raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; give head_dim")
        sizes["head_dim"] = hidden // heads
    return sizes


def is_count(value: Any) -> bool:
    """Whether a value counts something: a whole number from 1 on."""
    return type(value) is int and value > 0


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
