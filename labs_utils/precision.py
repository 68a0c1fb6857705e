"""Which numbers a run stores: the type of weights, gradients, master weights and moments, and their bytes.

This is the only place that says so. A new type (int8, NF4) is a `NumberType` more, a new recipe is a row more.
"""

from __future__ import annotations

from typing import NamedTuple

from labs_utils.run import Run


class NumberType(NamedTuple):
    """A way to store a number, and the bytes that one number takes."""

    name: str
    bytes: int


FP32, BF16, FP16 = NumberType("fp32", 4), NumberType("bf16", 2), NumberType("fp16", 2)
NONE = NumberType("none", 0)
FP32_BYTES = FP32.bytes


class Precision(NamedTuple):
    """The types of a run's numbers; `NONE` where a run has no such numbers.

    `master` is the fp32 copy of 16-bit weights that DeepSpeed updates. `autocast` is the type of matrix products.
    """

    weight: NumberType
    gradient: NumberType
    master: NumberType
    moment: NumberType
    autocast: NumberType

    @property
    def updated(self) -> NumberType:
        """The type of the weights that the optimizer updates: the master weights, or else the weights themselves.

        >>> PRECISIONS["bf16-master"].updated.name, PRECISIONS["bf16"].updated.name
        ('fp32', 'bf16')
        """
        return self.master if self.master.bytes else self.weight

    @property
    def scales_losses(self) -> bool:
        """Whether losses are multiplied by a number, because small gradients are 0 in fp16."""
        return FP16 in (self.weight, self.autocast)


PRECISIONS = {
    #                        weight gradient master moment autocast
    "fp32":        Precision(FP32,  FP32,    NONE,  FP32,  NONE),
    "bf16":        Precision(BF16,  BF16,    NONE,  BF16,  NONE),
    "bf16-mixed":  Precision(FP32,  FP32,    NONE,  FP32,  BF16),
    "fp16-mixed":  Precision(FP32,  FP32,    NONE,  FP32,  FP16),
    "bf16-master": Precision(BF16,  BF16,    FP32,  FP32,  NONE),
    "fp16-master": Precision(FP16,  FP16,    FP32,  FP32,  NONE),
}  # fmt: skip


def precision_of(run: Run) -> Precision:
    """The types of a run's numbers.

    >>> precision_of(Run(precision="bf16-master")).moment.bytes
    4
    """
    return PRECISIONS[run.precision]


class Optimizer(NamedTuple):
    """What an optimizer keeps for each tensor that it updates: how many `moments`, and whether it counts its steps."""

    moments: int
    counts_steps: bool = False
    is_8bit: bool = False


OPTIMIZERS = {
    "adamw": Optimizer(2, counts_steps=True),
    "adamw-foreach": Optimizer(2, counts_steps=True),
    "adamw-loop": Optimizer(2, counts_steps=True),
    "adamw-8bit": Optimizer(2, is_8bit=True),
    "sgd": Optimizer(0),
    "none": Optimizer(0),
}
# bitsandbytes 0.50, optim/optimizer.py: smaller tensors keep fp32 moments; 8-bit moments have one fp32 scale a block.
SMALLEST_8BIT_ELEMENTS, ELEMENTS_PER_SCALE = 4096, 256


class State(NamedTuple):
    """A tensor that an optimizer keeps: what makes it, its elements, and the bytes of one element."""

    name: str
    elements: int
    itemsize: int


def optimizer_states(optimizer: str, elements: int, itemsize: int) -> list[State]:
    """The tensors that an optimizer keeps for one tensor of weights, in the order in which it makes them.

    >>> [state.elements * state.itemsize for state in optimizer_states("adamw", 1000, 2)]
    [4, 2000, 2000]
    >>> [state.elements * state.itemsize for state in optimizer_states("adamw-8bit", 2**20, 2)]
    [1048576, 1048576, 16384, 16384]
    """
    kept = OPTIMIZERS[optimizer]
    if kept.is_8bit:
        return _8bit_states(elements, kept.moments)
    names = ("exp_avg", "exp_avg_sq")[: kept.moments]
    steps = [State("step", 1, FP32_BYTES)] if kept.counts_steps else []
    return steps + [State(name, elements, itemsize) for name in names]


def _8bit_states(elements: int, moments: int) -> list[State]:
    """bitsandbytes' `Optimizer2State.init_state`: a byte for each element, and the scales."""
    if elements < SMALLEST_8BIT_ELEMENTS:
        return [State("8bit state", elements, FP32_BYTES)] * moments
    scales = -(-elements // ELEMENTS_PER_SCALE)
    return [State("8bit state", elements, 1)] * moments + [State("8bit state", scales, FP32_BYTES)] * moments
