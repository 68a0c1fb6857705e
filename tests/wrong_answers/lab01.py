"""Plausible mistakes in Lab 01."""

import torch
import torch.nn.functional as F

SIZE = {"fp32": 4, "bf16": 2, None: 0}


def _state(parameters, recipe, optimizer_types):
    gradients = SIZE[recipe["gradients"]] + SIZE[recipe["gradient_copy"]]
    return {
        "parameters": parameters * SIZE[recipe["weights"]],
        "gradients": parameters * gradients,
        "optimizer_states": parameters * sum(SIZE[name] for name in optimizer_types),
    }


def state_bytes__forgets_the_master_copy(parameters, recipe):
    return _state(parameters, recipe, [recipe["moments"]] * 2)


def state_bytes__has_one_moment(parameters, recipe):
    return _state(parameters, recipe, [recipe["moments"], recipe["master"]])


def state_bytes__has_moments_in_the_type_of_the_weights(parameters, recipe):
    return _state(parameters, recipe, [recipe["weights"], recipe["weights"], recipe["master"]])


def state_bytes__counts_sixteen_bytes_whatever_the_recipe(parameters, recipe):
    return {"parameters": 2 * parameters, "gradients": 2 * parameters, "optimizer_states": 12 * parameters}


def state_bytes__forgets_the_second_gradients(parameters, recipe):
    return _state(parameters, {**recipe, "gradient_copy": None}, [recipe["moments"]] * 2 + [recipe["master"]])


def state_bytes__is_in_gigabytes(parameters, recipe):
    state = _state(parameters, recipe, [recipe["moments"]] * 2 + [recipe["master"]])
    return {kind: nbytes / 1e9 for kind, nbytes in state.items()}


def _widths(model):
    heads, kv_heads, dim = model["num_attention_heads"], model["num_key_value_heads"], model["head_dim"]
    return model["hidden_size"], model["intermediate_size"], heads, heads * dim, kv_heads * dim


def saved_bytes__ignores_grouped_heads(model, tokens):
    hidden, mlp, heads, queries, _ = _widths(model)
    return tokens * (16 * hidden + 8 + 8 * mlp + 8 * queries + 4 * heads)


def saved_bytes__takes_hidden_for_all_heads(model, tokens):
    hidden, mlp, heads, _, _ = _widths(model)
    keys = hidden * model["num_key_value_heads"] // heads
    return tokens * (16 * hidden + 8 + 8 * mlp + 4 * hidden + 4 * keys + 4 * heads)


def saved_bytes__adds_attention_scores(model, tokens):
    hidden, mlp, heads, queries, keys = _widths(model)
    return tokens * (16 * hidden + 8 + 8 * mlp + 4 * queries + 4 * keys + 5 * heads * tokens)


def saved_bytes__forgets_the_fp32_copies_of_the_norms(model, tokens):
    hidden, mlp, heads, queries, keys = _widths(model)
    return tokens * (8 * hidden + 8 + 8 * mlp + 4 * queries + 4 * keys + 4 * heads)


def saved_bytes__saves_the_mlp_once(model, tokens):
    hidden, mlp, heads, queries, keys = _widths(model)
    return tokens * (16 * hidden + 8 + 2 * mlp + 4 * queries + 4 * keys + 4 * heads)


def saved_bytes__counts_every_saved_tensor(model, tokens):
    """The fp32 copy twice a norm, each norm's output for each of its linears, silu's input and the rest as they are."""
    hidden, mlp, heads, queries, keys = _widths(model)
    norms = 2 * (2 * 4 * hidden + 4 + 2 * hidden) + 2 * hidden * (3 + 2)
    return tokens * (norms + 10 * mlp + 6 * queries + 4 * keys + 4 * heads)


def saved_bytes__is_34_bytes_a_hidden_unit(model, tokens):
    """arXiv 2205.05198, section 4.1, equation 1 without its attention scores: GPT with dropout."""
    return tokens * 34 * model["hidden_size"]


def _saved_tensors(module, inputs):
    tensors = []

    def pack(tensor):
        tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    return tensors


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


def measure_saved__counts_every_saved_tensor(module, inputs):
    owned = {_address(tensor) for tensor in [*module.parameters(), *inputs]}
    return sum(tensor.nbytes for tensor in _saved_tensors(module, inputs) if _address(tensor) not in owned)


def measure_saved__counts_the_parameters(module, inputs):
    inputs_only = {_address(tensor) for tensor in inputs}
    storages = {_address(tensor): tensor.untyped_storage().nbytes() for tensor in _saved_tensors(module, inputs)}
    return sum(nbytes for address, nbytes in storages.items() if address not in inputs_only)


def measure_saved__leaves_out_parameters_but_not_their_views(module, inputs):
    owned = {id(tensor) for tensor in [*module.parameters(), *inputs]}
    tensors = [tensor for tensor in _saved_tensors(module, inputs) if id(tensor) not in owned]
    return sum({_address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def measure_saved__takes_four_bytes_a_number(module, inputs):
    owned = {_address(tensor) for tensor in [*module.parameters(), *inputs]}
    numbers = {_address(tensor): tensor.numel() for tensor in _saved_tensors(module, inputs)}
    return sum(4 * count for address, count in numbers.items() if address not in owned)


def measure_saved__takes_the_size_of_the_view(module, inputs):
    owned = {_address(tensor) for tensor in [*module.parameters(), *inputs]}
    nbytes = {_address(tensor): tensor.nbytes for tensor in _saved_tensors(module, inputs)}
    return sum(size for address, size in nbytes.items() if address not in owned)


def measure_saved__counts_the_output(module, inputs):
    return module(*inputs).nbytes


def _moments(run, resident_bytes=6, loss_bytes=12, end_bytes=2):
    tokens, layers = run["micro_batch"] * run["seq_len"], run["num_hidden_layers"]
    hidden, mlp, vocab = run["hidden_size"], run["intermediate_size"], run["vocab_size"]
    resident, recomputed = resident_bytes * run["parameters"], run["checkpointed"] * run["layer_saved_bytes"]
    kept = 2 * hidden * tokens if run["checkpointed"] else run["layer_saved_bytes"]
    passing = (4 * mlp + 2 * hidden) * tokens + 2 * hidden * mlp + 2 * vocab * hidden
    first = kept + 2 * (layers - 1) * run["layer_parameters"]
    return {
        "loss": resident + layers * kept + loss_bytes * vocab * tokens,
        "layer": resident + recomputed + passing + max(layers * kept, first),
        "end": resident + end_bytes * run["parameters"],
    }


def _largest(moments):
    phase = max(moments, key=moments.get)
    return {"phase": phase, "bytes": moments[phase]}


def peak__forgets_the_logits(run):
    return _largest(_moments(run, loss_bytes=0))


def peak__has_one_bf16_copy_of_the_logits(run):
    return _largest(_moments(run, loss_bytes=2))


def peak__adds_the_moments_together(run):
    moments = _moments(run)
    return {**_largest(moments), "bytes": sum(moments.values())}


def peak__takes_sixteen_bytes_a_parameter(run):
    return _largest(_moments(run, resident_bytes=16, end_bytes=0))


def peak__has_gradients_from_the_start(run):
    return _largest(_moments(run, resident_bytes=8, end_bytes=0))


def peak__forgets_that_checkpointing_runs_a_layer_again(run):
    moments = _moments(run)
    return _largest({**moments, "layer": moments["layer"] - run["checkpointed"] * run["layer_saved_bytes"]})


def chunked_loss__is_a_mean_of_means(hidden, weight, labels, chunk_tokens):
    chunks = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    return torch.stack([F.cross_entropy(x @ weight.T, y) for x, y in chunks]).mean()


def chunked_loss__is_a_mean_of_means_without_the_empty_ones(hidden, weight, labels, chunk_tokens):
    chunks = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    return torch.stack([F.cross_entropy(x @ weight.T, y) for x, y in chunks if (y != -100).any()]).mean()


def chunked_loss__divides_by_all_tokens(hidden, weight, labels, chunk_tokens):
    chunks = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    return sum(F.cross_entropy(x @ weight.T, y, reduction="sum") for x, y in chunks) / len(labels)


def chunked_loss__drops_the_last_chunk(hidden, weight, labels, chunk_tokens):
    total, count = 0.0, 0
    for start in range(0, len(labels) - chunk_tokens + 1, chunk_tokens):
        chunk = slice(start, start + chunk_tokens)
        total += F.cross_entropy(hidden[chunk] @ weight.T, labels[chunk], reduction="sum")
        count += (labels[chunk] != -100).sum()
    return total / count


def chunked_loss__memory_naive(hidden, weight, labels, chunk_tokens):
    return F.cross_entropy(hidden @ weight.T, labels)


def chunked_loss__memory_collects_the_chunks(hidden, weight, labels, chunk_tokens):
    logits = torch.cat([chunk @ weight.T for chunk in hidden.split(chunk_tokens)])
    return F.cross_entropy(logits, labels)


def chunked_loss__memory_only_leaves_out_ignored_tokens(hidden, weight, labels, chunk_tokens):
    counted = labels != -100
    return F.cross_entropy(hidden[counted] @ weight.T, labels[counted])
