"""The names under which `labs doctor --full` records what it has timed, and the small steps that it times.

Who measures and who reads a rate both take its name from here, so that each is written once.
"""

from __future__ import annotations

from labs_utils.run import Run

OF_ALL_RANKS = "host of all ranks: "  # before what all ranks do at once
TO_HOST, TO_DEVICE = "device to host", "host to device"
CPU_ADAM, ROUNDING, SCALING = "CPU Adam of DeepSpeed", "fp32 to bf16", "fp32 times a number"

# Operators that only read and write, by the operator's name in a symbolic step; `half` is a 16-bit type.
PASSES = {
    "add": "add {half}", "mul": "mul fp32", "to": "to fp32 from {half}", "mean": "mean of rows fp32",
    "sum": "sum of columns {half}", "clone": "clone into order {half}", "log_softmax": "log_softmax fp32",
    "norm": "norm fp64 of {half}",
}  # fmt: skip


def memory_pass(operator: str, half: str = "bf16") -> str:
    """An operator whose time is that of reading and writing memory.

    >>> memory_pass("to", "fp16")
    'pass: to fp32 from fp16'
    """
    return "pass: " + PASSES[operator].format(half=half)


def product(number: str) -> str:
    """Products of square matrices of "fp32", "bf16" or "fp16"; launching is left out."""
    return f"matmul {number}, back to back"


def attention(kernel: str, direction: str) -> str:
    """A fused attention kernel's "forward" or "backward"."""
    return f"{kernel} attention {direction}"


def way_to_attend(way: str, direction: str) -> str:
    """One of Lab 06's ways, "forward" or "backward"."""
    return f"attention, {way}, {direction}"


def optimizer(name: str, number: str) -> str:
    """An optimizer's step on the GPU, over weights of "fp32", "bf16" or "fp16"."""
    return f"optimizer {name} {number}"


def transfer(direction: str, pinned: bool = True) -> str:
    """Bytes between host and device.

    >>> transfer(TO_HOST)
    'device to host, pinned'
    """
    return f"{direction}, {'pinned' if pinned else 'pageable'}"


def copy(direction: str, pinned: bool = True) -> str:
    """The same where one GPU copies alone."""
    return f"copy {transfer(direction, pinned)}"


def host_step(engine: str, variant: str = "") -> str:
    """A step so small that the GPU waits for the host, such as "torch" with a variant of `HOST_VARIANTS`."""
    return f"host: step of {engine}{variant}"


HOST_SHAPE = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 2048,
}  # fmt: skip
FORWARD_ALONE = ", forward alone"
TWO_MICRO_STEPS = ", two micro-steps"
FULL_CHECKPOINTING = ", full checkpointing"
SELECTIVE_CHECKPOINTING = ", selective checkpointing"
HOST_VARIANTS = {
    "": {},
    TWO_MICRO_STEPS: {"grad_accum": 2},
    FULL_CHECKPOINTING: {"checkpointing": "full"},
    SELECTIVE_CHECKPOINTING: {"checkpointing": "keep-attention"},
}


def engine_name(engine: str, zero_stage: int) -> str:
    """What an engine is called in `host_step`.

    >>> engine_name("deepspeed", 3)
    'deepspeed stage 3'
    """
    return f"{engine} stage {zero_stage}" if engine == "deepspeed" else engine


def host_runs(**fields) -> dict[str, Run]:
    """Steps of a model so small that the GPU waits for the host, by what is done besides."""
    run = {"model": HOST_SHAPE, "seq_len": 128, **fields}
    return {name: Run.parse({**run, **variant}) for name, variant in HOST_VARIANTS.items()}
