"""The table of numbers is what PyTorch stores: types by precision, and what optimizers keep."""

import pytest

from labs_utils.precision import OPTIMIZERS, optimizer_states, precision_of
from labs_utils.run import Run

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
}  # fmt: skip


def step_of(**changes):
    from labs_utils.training.step import TrainingStep

    return TrainingStep(Run.parse({"model": SHAPE, "seq_len": 16, **changes}), "cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_weights_gradients_and_moments_are_of_the_types_in_the_table(precision):
    step = step_of(precision=precision)
    step.micro_step(lambda name: None)
    gradients = {parameter.grad.element_size() for parameter in step.model.parameters()}
    step.optimizer_step()
    moments = {state["exp_avg"].element_size() for state in step.optimizer.state.values()}
    numbers = precision_of(step.run)
    assert {parameter.element_size() for parameter in step.model.parameters()} == {numbers.weight.bytes}
    assert (gradients, moments) == ({numbers.gradient.bytes}, {numbers.moment.bytes})


@pytest.mark.parametrize("optimizer", [name for name, kept in OPTIMIZERS.items() if not kept.is_8bit])
def test_an_optimizer_keeps_the_states_in_the_table(optimizer):
    step = step_of(optimizer=optimizer)
    step()
    for parameter in step.model.parameters():
        kept = step.optimizer.state[parameter] if step.optimizer else {}
        sizes = [(name, each.numel(), each.element_size()) for name, each in kept.items() if each is not None]
        assert sizes == optimizer_states(optimizer, parameter.numel(), parameter.element_size())


def test_8_bit_moments_take_a_byte_each_and_a_scale_for_256():
    large, small = (optimizer_states("adamw-8bit", elements, 2) for elements in (4096, 4095))
    assert sum(state.elements * state.itemsize for state in large) == 2 * (4096 + 4 * 16)
    assert sum(state.elements * state.itemsize for state in small) == 2 * 4 * 4095
