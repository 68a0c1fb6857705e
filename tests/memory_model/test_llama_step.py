"""The step in sizes: what a layer keeps for backward by the closed forms, and how the tape counts."""

import pytest
from helpers import VARIANTS, small_run

from labs_utils.answers.dry_run import dry_run_timeline
from labs_utils.answers.estimate import estimate_timeline
from labs_utils.device import CPU, H200
from labs_utils.memory_model.llama_step import SymbolicStep
from labs_utils.memory_model.ranks import distributed_step
from labs_utils.memory_model.tape import Tape
from labs_utils.run import Run

# The closed forms' symbols: T tokens, h hidden, f MLP, a heads, k key/value heads, d head_dim, V vocabulary.
h, f, a, k, d, V, b, s = 96, 328, 6, 2, 20, 1009, 2, 130
T = b * s
ATTENTION = 4 * a * d + 4 * k * d + 4 * a  # q, k, v and the output; one fp32 log-sum-exp a head
NORMS = 16 * h + 8  # twice: x in fp32, normalised and scaled in bf16, one fp32 number
MLP = 8 * f  # gate, its SiLU, up, their product
LINEAR_WEIGHTS = 2 * h * d * (a + k) + 3 * h * f

# Bytes that one layer keeps for each token, and once.
SAVED = {
    "flash": ({}, NORMS + MLP + ATTENTION, 0),
    "flash_attention_2": ({"attention": "flash_attention_2"}, NORMS + MLP + ATTENTION, 0),
    "padded": ({"padded": True}, NORMS + MLP + 8 * a * d + 4 * a + 2 * s, 0),
    "eager": ({"attention": "eager"}, NORMS + MLP + 8 * a * d + 6 * a * s, 0),
    "full": ({"checkpointing": "full"}, 2 * h, 0),
    "offload": ({"checkpointing": "offload"}, 0, 0),
    "keep-matmul-attention": ({"checkpointing": "keep-matmul-attention"}, 6 * h + 4 * f + ATTENTION, 0),
    "keep-attention": ({"checkpointing": "keep-attention"}, 2 * h + 2 * a * d + 4 * a, 0),
    "autocast": ({"precision": "bf16-mixed"}, 26 * h + 8 + MLP + ATTENTION, 2 * LINEAR_WEIGHTS),
    "liger": ({"layer_kernels": "liger"}, 8 * h + 8 + 6 * f + ATTENTION, 0),
}


def run_of(layers, changes):
    model = {
        "hidden_size": h, "intermediate_size": f, "num_attention_heads": a, "num_key_value_heads": k, "head_dim": d,
        "vocab_size": V, "num_hidden_layers": layers,
    }  # fmt: skip
    return Run.parse({"model": model, "seq_len": s, "micro_batch": b, "optimizer": "none", **changes})


def kept_by_forward(timeline_of, layers, changes):
    """Bytes that are live as backward begins and weren't as forward began."""
    timeline = timeline_of(run_of(layers, changes), CPU)
    before, after = (next(timeline.moments((phase,))) for phase in ("forward", "backward"))
    return after.live_bytes - before.live_bytes


@pytest.mark.parametrize("variant", SAVED)
def test_a_layer_keeps_what_the_closed_form_says(variant):
    changes, per_token, once = SAVED[variant]
    per_layer = kept_by_forward(estimate_timeline, 3, changes) - kept_by_forward(estimate_timeline, 2, changes)
    assert per_layer == T * per_token + once


@pytest.mark.parametrize("variant", [variant for variant in SAVED if variant != "liger"])
def test_a_layer_of_the_real_model_keeps_what_the_closed_form_says(variant):
    changes, per_token, once = SAVED[variant]
    per_layer = kept_by_forward(dry_run_timeline, 2, changes) - kept_by_forward(dry_run_timeline, 1, changes)
    assert per_layer == T * per_token + once


def test_outside_the_layers_the_final_norm_the_loss_and_the_rotary_tables_are_kept():
    outside = kept_by_forward(estimate_timeline, 2, {}) - 2 * T * SAVED["flash"][1]
    norm, log_softmax, labels, tables = T * (8 * h + 4), 4 * V * T, 8 * T, 4 * d * s
    assert outside == norm + log_softmax + labels + tables


@pytest.mark.parametrize("checkpointing, times", [("none", 1), ("every-2", 1.5), ("full", 2)])
def test_a_checkpointed_layer_runs_forward_twice(checkpointing, times):
    timeline = estimate_timeline(run_of(4, {"checkpointing": checkpointing}), CPU)
    events = [event for event in timeline.events if event.phase in ("forward", "backward")]
    assert sum(event.operator == "silu" for event in events) == 4 * times


@pytest.mark.parametrize("variant", VARIANTS)
def test_after_a_step_only_parameters_states_and_buffers_are_left(variant):
    step = SymbolicStep(small_run(**VARIANTS[variant]))
    step("warm ")
    warm = live_bytes(step.tape)
    step()
    left = [*step.parameters, *(state for states in step.states.values() for state in states), *step.buffers]
    assert live_bytes(step.tape) == warm == sum(tensor.storage.nbytes for tensor in left)


RANKS = {
    "ddp": {"engine": "ddp", "grad_accum": 2},
    "stage 0": {"engine": "deepspeed", "precision": "bf16-master"},
    "stage 1": {"zero_stage": 1, "world_size": 3, "grad_accum": 2, "zero": {"overlap_comm": True}},
    "stage 2": {"zero_stage": 2, "world_size": 3, "zero": {"reduce_bucket_size": 5000}},
    "stage 2, offloaded": {"zero_stage": 2, "world_size": 2, "offload": "optimizer", "grad_accum": 3},
}


@pytest.mark.parametrize("changes", [*VARIANTS.values(), *RANKS.values()], ids=[*VARIANTS, *RANKS])
def test_the_step_after_a_warm_one_does_what_came_and_went_in_it(changes):
    run = small_run(**changes)
    make = SymbolicStep if run.engine == "torch" else distributed_step
    played, repeated = make(run, H200), make(run, H200)
    played("warm ")
    played()
    repeated("warm ")
    repeated.tape.timeline.repeat("warm ", next(repeated.tape.identities))
    assert stored(repeated.tape.timeline) == stored(played.tape.timeline)


def stored(timeline):
    """The events on device and host, each with its storage's part, and storages numbered as they come."""
    numbers = {}
    return [
        (numbers.setdefault(event.storage, len(numbers)), timeline.part_of.get(event.storage), *event[1:])
        for event in [*timeline.events, *timeline.host_events]
    ]


def live_bytes(tape):
    return sum(event.change_bytes for event in tape.timeline.events)


@pytest.fixture
def tape():
    return Tape()


def double(tape, x):
    """`x * 2`, which keeps x for no reason but to be seen."""
    output = tape.new(x.elements, x.itemsize, "double")
    backward = lambda gradient, x: (tape.new(x.elements, x.itemsize, "double_backward"),)  # noqa: E731
    return tape.differentiable(output, "double", backward, (x,), (x,))


def plus(tape, x, y):
    """`x + y`, which keeps nothing and hands its gradient on to both."""
    return tape.differentiable(tape.new(x.elements, x.itemsize, "plus"), "plus", lambda g: (g, g), (x, y), ())


def test_a_storage_goes_with_its_last_reference(tape):
    x = tape.new(10, 2, "x")
    view = x.detach()
    del x
    assert live_bytes(tape) == 20
    del view
    assert live_bytes(tape) == 0


def test_forward_keeps_a_tensor_that_backward_needs_and_backward_frees_it(tape):
    weight = tape.parameter(10, 2)
    output = double(tape, double(tape, weight))
    assert live_bytes(tape) == 60
    tape.backward(output.node, tape.new(10, 2, "ones"))
    assert live_bytes(tape) == 60  # the weight, its gradient and the output; not the tensor between
    assert weight.node.gradient.elements == 10


@pytest.mark.parametrize("needs_gradient, grad_enabled", [(False, True), (True, False)])
def test_nothing_is_kept_where_no_gradient_is_needed(tape, needs_gradient, grad_enabled):
    x = tape.parameter(10, 2) if needs_gradient else tape.new(10, 2, "x")
    tape.grad_enabled = grad_enabled
    output = double(tape, double(tape, x))
    assert output.node is None and live_bytes(tape) == 40


def test_gradients_of_two_uses_are_added_up_in_a_new_tensor(tape):
    weight = tape.parameter(10, 2)
    middle = double(tape, weight)
    output = plus(tape, double(tape, middle), double(tape, middle))
    tape.backward(output.node, tape.new(10, 2, "ones"))
    operators = [event.operator for event in tape.timeline.events]
    assert operators.count("add") == 1 and operators.count("double_backward") == 3


def test_a_second_gradient_is_added_to_the_first_in_place(tape):
    weight = tape.parameter(10, 2)
    gradients = []
    for _ in range(2):
        tape.backward(double(tape, weight).node, tape.new(10, 2, "ones"))
        gradients.append(weight.node.gradient)
    assert gradients[0] is gradients[1] and live_bytes(tape) == 40
