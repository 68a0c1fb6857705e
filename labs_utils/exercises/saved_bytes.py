"""Bytes that are saved for backward: the meter, a decoder layer on it, and a stand-in for a layer that saves a lot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch

from labs_utils.profiling.tracker import MemoryTracker
from labs_utils.run import Run
from labs_utils.training.step import build_model


def kept_bytes(function: Callable, inputs: list[torch.Tensor], owned: Iterable[torch.Tensor] = ()) -> int:
    """The bytes that `function` makes and that live on for backward once its result itself is dropped.

    Found by watching storages appear and go, not by asking autograd: the storages of `inputs` and `owned` are left
    out, and every other one counts once, whole.
    """
    with torch.enable_grad(), MemoryTracker() as tracker:  # a student's code may have turned gradients off
        tracker.watch("buffers", [*inputs, *owned])
        graph = function(*inputs).grad_fn  # holds what backward needs, and not the result
        *_, last = tracker.timeline.moments((tracker.current_phase,))
        del graph
    return last.parts["activations"]


def layer_saved_bytes(model: dict, tokens: int) -> int:
    """Bytes that the first layer of transformers' bf16 Llama, called on one sequence, keeps for backward.

    Its input isn't among them: the norm saves an fp32 copy instead, and the residual sum saves nothing.
    """
    run = Run(model={**model, "num_hidden_layers": 1, "vocab_size": 8}, seq_len=tokens)
    llama = build_model(run, torch.device("cpu")).model
    hidden = torch.ones(1, tokens, run.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    tables = llama.rotary_emb(hidden, torch.arange(tokens)[None])
    return kept_bytes(partial(llama.layers[0], position_embeddings=tables), [hidden], [*llama.parameters(), *tables])


class KeepsBytes(torch.autograd.Function):
    """Passes hidden states on and keeps so many bytes for backward: what a deep layer does, without computing it."""

    @staticmethod
    def forward(ctx, hidden: torch.Tensor, nbytes: int) -> torch.Tensor:
        ctx.save_for_backward(torch.empty(nbytes, dtype=torch.uint8))  # never touched: takes no time
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        ctx.saved_tensors  # noqa: B018  a checkpoint computes them again; a second backward is refused
        return gradient.clone(), None
