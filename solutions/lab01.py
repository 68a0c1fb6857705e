"""Solutions of Lab 01."""

import torch
import torch.nn.functional as F

TYPE_BYTES = {"fp32": 4, "bf16": 2, None: 0}


def state_bytes(parameters: int, recipe: dict[str, str | None]) -> dict[str, int]:
    size = {kind: parameters * TYPE_BYTES[name] for kind, name in recipe.items()}
    return {
        "parameters": size["weights"],
        "gradients": size["gradients"] + size["gradient_copy"],
        "optimizer_states": 2 * size["moments"] + size["master"],
    }


def saved_bytes(model: dict[str, int], tokens: int) -> int:
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    norms = 2 * (4 * hidden + 4 + 2 * hidden + 2 * hidden)  # fp32 copy, 1/rms, normalised, output
    mlp = 4 * 2 * model["intermediate_size"]  # gate, silu(gate), up, their product
    queries, keys = heads * model["head_dim"], model["num_key_value_heads"] * model["head_dim"]
    attention = 2 * (2 * queries + 2 * keys) + 4 * heads  # q, output, k, v and the log-sum-exp
    return tokens * (norms + mlp + attention)


def measure_saved(module: torch.nn.Module, inputs: list[torch.Tensor]) -> int:
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(*inputs)  # noqa: F841  keeps the graph, and with it every address, alive
    owned = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *inputs]}
    return sum(nbytes for address, nbytes in saved.items() if address not in owned)


def peak(run: dict) -> dict:
    tokens, layers = run["micro_batch"] * run["seq_len"], run["num_hidden_layers"]
    hidden, mlp, vocab = run["hidden_size"], run["intermediate_size"], run["vocab_size"]
    resident = (2 + 2 + 2) * run["parameters"]
    kept = 2 * hidden * tokens if run["checkpointed"] else run["layer_saved_bytes"]
    recomputed = run["layer_saved_bytes"] if run["checkpointed"] else 0
    passing = (4 * mlp + 2 * hidden) * tokens + 2 * hidden * mlp

    def layer(i):
        gradients = 2 * vocab * hidden + 2 * (layers - i) * run["layer_parameters"]
        return resident + i * kept + recomputed + gradients + passing

    moments = {
        "loss": resident + layers * kept + 3 * 4 * vocab * tokens,
        "layer": max(layer(layers), layer(1)),
        "end": resident + 2 * run["parameters"],
    }
    phase = max(moments, key=moments.get)
    return {"phase": phase, "bytes": moments[phase]}


def chunked_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
    total = torch.zeros(())
    for chunk, chunk_labels in zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True):
        total += F.cross_entropy(chunk @ weight.T, chunk_labels, reduction="sum")
    return total / (labels != -100).sum()
