"""Bytes of numbers: weights, master weights, gradients and moments, by precision."""

from __future__ import annotations

from labs_utils.run import Run


def master_bytes(run: Run) -> int:
    """Of a master weight, and of each gradient and moment beside it: 4, but 2 where all of a run is bf16."""
    return 2 if run.precision == "bf16" else 4


WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "bf16-mixed": 4, "fp16-mixed": 4, "bf16-master": 2, "fp16-master": 2}


AUTOCAST_BYTES = {"bf16-mixed": 2, "fp16-mixed": 2}


FP32_BYTES = 4
