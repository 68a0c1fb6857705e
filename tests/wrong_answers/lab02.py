"""Plausible mistakes in Lab 02."""

import torch

from labs_utils import Run, estimate

POLICIES = ("none", "keep-matmul-attention", "every-2", "keep-attention", "full")


def _one_layer(model, o_and_down=2, inputs=2, lse=4):
    """Bytes a token: of the hidden size, of the queries, of the keys, and of one layer under each policy."""
    hidden, mlp, heads = model["hidden_size"], model["intermediate_size"], model["num_attention_heads"]
    queries, keys = 2 * heads * model["head_dim"], 2 * model["num_key_value_heads"] * model["head_dim"]
    attention = queries + lse * heads
    everything = 16 * hidden + 8 + 8 * mlp + queries + 2 * keys + attention
    products = queries + 2 * keys + 4 * mlp + o_and_down * 2 * hidden
    return {
        "none": everything,
        "full": inputs * hidden,
        "keep-attention": inputs * hidden + attention,
        "keep-matmul-attention": inputs * hidden + attention + products,
    }


def _all_layers(model, policy, tokens, one_layer, round_up=True):
    layers = model["num_hidden_layers"]
    if policy in one_layer:
        return tokens * layers * one_layer[policy]
    every = int(policy.removeprefix("every-"))
    checkpointed = -(-layers // every) if round_up else layers // every
    return tokens * (checkpointed * one_layer["full"] + (layers - checkpointed) * one_layer["none"])


def policy_bytes__leaves_out_the_result_of_down(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model, o_and_down=1))


def policy_bytes__keeps_the_input_in_fp32(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model, inputs=4))


def policy_bytes__forgets_the_log_sum_exp(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model, lse=0))


def policy_bytes__rounds_every_k_down(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model), round_up=False)


def policy_bytes__takes_every_k_for_keeping_every_kth(model, policy, tokens):
    one_layer, layers = _one_layer(model), model["num_hidden_layers"]
    if policy in one_layer:
        return tokens * layers * one_layer[policy]
    kept = -(-layers // int(policy.removeprefix("every-")))
    return tokens * (kept * one_layer["none"] + (layers - kept) * one_layer["full"])


def policy_bytes__adds_a_checkpointed_layer_where_k_divides_the_layers(model, policy, tokens):
    one_layer, layers = _one_layer(model), model["num_hidden_layers"]
    if policy in one_layer:
        return tokens * layers * one_layer[policy]
    checkpointed = layers // int(policy.removeprefix("every-")) + 1
    return tokens * (checkpointed * one_layer["full"] + (layers - checkpointed) * one_layer["none"])


def policy_bytes__reads_the_last_digit_of_k(model, policy, tokens):
    return _all_layers(model, f"every-{policy[-1]}" if "every" in policy else policy, tokens, _one_layer(model))


def policy_bytes__counts_one_layer(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model)) // model["num_hidden_layers"]


def policy_bytes__adds_the_recomputed_layer(model, policy, tokens):
    one_layer = _one_layer(model)
    again = 0 if policy == "none" else tokens * one_layer["none"]
    return _all_layers(model, policy, tokens, one_layer) + again


def policy_bytes__counts_gibibytes(model, policy, tokens):
    return _all_layers(model, policy, tokens, _one_layer(model)) / 2**30


def segment_layers__is_the_square_root(layers, input_bytes, layer_bytes):
    return round(layers**0.5)


def segment_layers__is_the_number_of_segments(layers, input_bytes, layer_bytes):
    return max(1, round((layers * layer_bytes / input_bytes) ** 0.5))


def segment_layers__checkpoints_each_layer(layers, input_bytes, layer_bytes):
    return 1


def segment_layers__recomputes_everything_at_once(layers, input_bytes, layer_bytes):
    return layers


def segment_layers__keeps_as_little_as_possible_after_forward(layers, input_bytes, layer_bytes):
    return min(range(1, layers + 1), key=lambda each: -(-layers // each) * input_bytes)


def segment_layers__leaves_the_ratio_out(layers, input_bytes, layer_bytes):
    return min(range(1, layers + 1), key=lambda each: -(-layers // each) + each)


def segment_layers__ignores_that_the_last_segment_is_short(layers, input_bytes, layer_bytes):
    return min(range(1, layers + 1), key=lambda each: -(-layers // each) * input_bytes + each * layer_bytes)


def segment_layers__is_one_of_three_numbers(layers, input_bytes, layer_bytes):
    ratio = layer_bytes / input_bytes
    return 3 if ratio < 5 else 2 if ratio < 12 else 1


def segment_layers__is_a_root_that_isnt_whole(layers, input_bytes, layer_bytes):
    return (layers * input_bytes / layer_bytes) ** 0.5


def segment_layers__halves_the_layers(layers, input_bytes, layer_bytes):
    return layers // 2


def _peak(run, policy):
    return estimate(Run.parse({**run, "checkpointing": policy}), "cpu").peak_bytes


def _first_that_fits(run, limit_bytes, order):
    return next((policy for policy in order if _peak(run, policy) <= limit_bytes), None)


def cheapest_policy__takes_the_list_for_an_order_of_costs(run, limit_bytes):
    return _first_that_fits(run, limit_bytes, POLICIES)


def cheapest_policy__always_prefers_to_keep_attention(run, limit_bytes):
    return _first_that_fits(run, limit_bytes, ("none", "keep-matmul-attention", "keep-attention", "every-2", "full"))


def cheapest_policy__fills_the_memory(run, limit_bytes):
    fitting = {policy: _peak(run, policy) for policy in POLICIES if _peak(run, policy) <= limit_bytes}
    return max(fitting, key=fitting.get, default=None)


def cheapest_policy__saves_most(run, limit_bytes):
    best = min(POLICIES, key=lambda policy: _peak(run, policy))
    return best if _peak(run, best) <= limit_bytes else None


def cheapest_policy__knows_only_all_or_nothing(run, limit_bytes):
    return _first_that_fits(run, limit_bytes, ("none", "full"))


def cheapest_policy__forgets_that_nothing_may_fit(run, limit_bytes):
    order = ("none", "keep-matmul-attention", "every-2", "keep-attention", "full")
    return _first_that_fits(run, limit_bytes, order) or "full"


def _cheapest(run, limit_bytes, down=0, attention_times=1.0, half=lambda layers: -(-layers // 2), grouped=True):
    """By FLOPs: right, but for what its callers change."""
    model = run["model"]
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    queries, keys = (model[heads] * model["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    products = 4 * hidden * (queries + (keys if grouped else queries))
    products += 2 * hidden * (2 + down) * model["intermediate_size"]
    attention = attention_times * 4 * run["seq_len"] * queries
    again = {
        "none": 0,
        "keep-matmul-attention": 0,
        "every-2": half(layers) * (products + attention),
        "keep-attention": layers * products,
        "full": layers * (products + attention),
    }
    fitting = (policy for policy in POLICIES if _peak(run, policy) <= limit_bytes)
    return min(fitting, key=again.get, default=None)


def cheapest_policy__counts_down(run, limit_bytes):
    return _cheapest(run, limit_bytes, down=1)


def cheapest_policy__halves_attention(run, limit_bytes):
    return _cheapest(run, limit_bytes, attention_times=0.5)


def cheapest_policy__takes_half_of_an_odd_number_of_layers(run, limit_bytes):
    return _cheapest(run, limit_bytes, half=lambda layers: layers / 2)


def cheapest_policy__overlooks_grouped_heads(run, limit_bytes):
    return _cheapest(run, limit_bytes, grouped=False)


def cheapest_policy__takes_the_last_of_equals(run, limit_bytes):
    first = _cheapest(run, limit_bytes)
    both = first == "none" and _peak(run, "keep-matmul-attention") <= limit_bytes
    return "keep-matmul-attention" if both else first


def cheapest_policy__goes_by_the_sequence_length(run, limit_bytes):
    last = ("every-2", "keep-attention") if run["seq_len"] < 125 else ("keep-attention", "every-2")
    return _first_that_fits(run, limit_bytes, ("none", "keep-matmul-attention", *last, "full"))


def cheapest_policy__goes_by_the_micro_batch(run, limit_bytes):
    last = ("every-2", "keep-attention") if run["micro_batch"] < 7 else ("keep-attention", "every-2")
    return _first_that_fits(run, limit_bytes, ("none", "keep-matmul-attention", *last, "full"))


def cheapest_policy__compares_kept_bytes_with_the_limit(run, limit_bytes):
    model = run["model"]
    one_layer = _one_layer(model)
    one_layer["every-2"] = (one_layer["none"] + one_layer["full"]) / 2
    layers = run["seq_len"] * model["num_hidden_layers"]
    return next((policy for policy in POLICIES if one_layer[policy] * layers <= limit_bytes), None)


def cheapest_policy__counts_gibibytes(run, limit_bytes):
    return next((policy for policy in POLICIES if _peak(run, policy) / 2**30 <= limit_bytes), None)


class _Recomputes(torch.autograd.Function):
    """Right, but for the switches that its children turn off."""

    fork = restore = parameters = True

    @classmethod
    def _run(cls, ctx, fn, inputs):
        ctx.fn, ctx.state = fn, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return fn(*inputs)

    @classmethod
    def _again(cls, ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        now = torch.get_rng_state()
        if cls.restore:
            torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            output = ctx.fn(*inputs)
        if cls.fork:
            torch.set_rng_state(now)
        if cls.parameters:
            torch.autograd.backward(output, gradient)
            return None, *(x.grad for x in inputs)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient))
        return None, *(next(found) if x.requires_grad else None for x in inputs)


class _NoRandomState(_Recomputes):
    restore = fork = False

    @staticmethod
    def forward(ctx, fn, *inputs):
        return _NoRandomState._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _NoRandomState._again(ctx, gradient)


class _LeavesTheOldState(_Recomputes):
    fork = False

    @staticmethod
    def forward(ctx, fn, *inputs):
        return _LeavesTheOldState._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _LeavesTheOldState._again(ctx, gradient)


class _InputsOnly(_Recomputes):
    parameters = False

    @staticmethod
    def forward(ctx, fn, *inputs):
        return _InputsOnly._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _InputsOnly._again(ctx, gradient)


class _FirstInput(_Recomputes):
    @staticmethod
    def forward(ctx, fn, *inputs):
        return _FirstInput._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        none, first, *others = _FirstInput._again(ctx, gradient)
        return none, first, *(None for _ in others)


class _NotEnabled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):
        ctx.fn = fn
        ctx.save_for_backward(*inputs)
        return fn(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        ctx.fn(*inputs).backward(gradient)
        return None, *(x.grad for x in inputs)


class _NotDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):
        ctx.fn, ctx.state = fn, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return fn(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            ctx.fn(*ctx.saved_tensors).backward(gradient)
        return None, *(x.grad for x in ctx.saved_tensors)


class _KeepsTheGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):
        with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            ctx.output = fn(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.output.backward(gradient)
        return None, *(x.grad for x in ctx.inputs)


class _FixedSeed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):
        ctx.fn = fn
        ctx.save_for_backward(*inputs)
        torch.manual_seed(0)
        return fn(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        torch.manual_seed(0)
        with torch.enable_grad():
            output = ctx.fn(*inputs)
        output.backward(gradient)
        return None, *(x.grad for x in inputs)


def checkpoint__draws_new_dropout_masks(fn, *inputs):
    return _NoRandomState.apply(fn, *inputs)


def checkpoint__leaves_the_old_random_state(fn, *inputs):
    return _LeavesTheOldState.apply(fn, *inputs)


def checkpoint__gives_parameters_no_gradients(fn, *inputs):
    return _InputsOnly.apply(fn, *inputs)


def checkpoint__returns_the_first_gradient_only(fn, *inputs):
    return _FirstInput.apply(fn, *inputs)


def checkpoint__recomputes_without_a_graph(fn, *inputs):
    return _NotEnabled.apply(fn, *inputs)


def checkpoint__does_not_detach_its_inputs(fn, *inputs):
    return _NotDetached.apply(fn, *inputs)


def checkpoint__sets_a_seed_of_its_own(fn, *inputs):
    return _FixedSeed.apply(fn, *inputs)


def checkpoint__runs_without_gradients(fn, *inputs):
    with torch.no_grad():
        return fn(*inputs)


def checkpoint__memory_just_calls_the_function(fn, *inputs):
    return fn(*inputs)


def checkpoint__memory_keeps_the_graph_inside(fn, *inputs):
    return _KeepsTheGraph.apply(fn, *inputs)


class _KeepsACopy(_Recomputes):
    @staticmethod
    def forward(ctx, fn, *inputs):
        output = _KeepsACopy._run(ctx, fn, inputs)
        ctx.output = output.clone()
        return output

    @staticmethod
    def backward(ctx, gradient):
        return _KeepsACopy._again(ctx, gradient)


class _KeepsMoreInputs(_Recomputes):
    @staticmethod
    def forward(ctx, fn, *inputs):
        ctx.copies = [x.clone() for x in inputs]
        return _KeepsMoreInputs._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _KeepsMoreInputs._again(ctx, gradient)


class _KeepsInputsForever(_Recomputes):
    kept = []

    @staticmethod
    def forward(ctx, fn, *inputs):
        _KeepsInputsForever.kept.extend(inputs)
        return _KeepsInputsForever._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _KeepsInputsForever._again(ctx, gradient)


class _AllRequireGradients(_Recomputes):
    @staticmethod
    def forward(ctx, fn, *inputs):
        return _AllRequireGradients._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(True) for x in ctx.saved_tensors]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            output = ctx.fn(*inputs)
        torch.set_rng_state(now)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


class _ThreeTimes(_Recomputes):
    @staticmethod
    def forward(ctx, fn, *inputs):
        state = torch.get_rng_state()
        for _ in range(2):
            fn(*inputs)
        torch.set_rng_state(state)
        return _ThreeTimes._run(ctx, fn, inputs)

    @staticmethod
    def backward(ctx, gradient):
        return _ThreeTimes._again(ctx, gradient)


def checkpoint__memory_keeps_a_copy_of_its_output(fn, *inputs):
    return _KeepsACopy.apply(fn, *inputs)


def checkpoint__memory_keeps_copies_of_its_inputs(fn, *inputs):
    return _KeepsMoreInputs.apply(fn, *inputs)


def checkpoint__memory_never_lets_go_of_its_inputs(fn, *inputs):
    return _KeepsInputsForever.apply(fn, *inputs)


def checkpoint__lets_all_inputs_require_gradients(fn, *inputs):
    return _AllRequireGradients.apply(fn, *inputs)


def checkpoint__runs_the_function_three_times(fn, *inputs):
    return _ThreeTimes.apply(fn, *inputs)
