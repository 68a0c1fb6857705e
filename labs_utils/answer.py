"""`Answer`: how much memory a run needs and how long a step takes, in one record whoever answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, NonNegativeFloat, NonNegativeInt, model_validator

from labs_utils.run import Run

PARTS = ("parameters", "gradients", "optimizer_states", "activations", "logits", "buffers", "workspace")
PHASES = ("forward", "backward", "optimizer")


class Answer(BaseModel, frozen=True, strict=True, extra="forbid"):
    """One answer to one run. `parts` sum to `peak_bytes` at the instant of the peak, or are None.

    `outcome` is "ok", "out of memory", "unsupported", … : `provenance["reason"]` says why it isn't "ok". `phase` is
    the part of the step in which the peak falls. `device` is a name from `data/gpus.csv`, "cpu", or None.
    """

    run: Run
    method: Literal["estimate", "dry_run", "measure", "recall"]
    device: str | None = None
    outcome: str = "ok"
    peak_bytes: NonNegativeInt | None = None
    phase: str | None = None
    parts: dict[str, NonNegativeInt] | None = None
    step_seconds: NonNegativeFloat | None = None
    provenance: dict[str, Any] = {}

    @model_validator(mode="after")
    def _parts_sum_to_the_peak(self) -> Answer:
        if self.parts is not None and sum(self.parts.values()) != self.peak_bytes:
            raise ValueError(f"parts sum to {sum(self.parts.values())} bytes, the peak is {self.peak_bytes}")
        return self

    @classmethod
    def unsupported(cls, run: Run, method: str, device: str | None, reason: str) -> Answer:
        """The answer of a method that can't give one yet, with the reason."""
        return cls(run=run, method=method, device=device, outcome="unsupported", provenance={"reason": reason})

    def to_dict(self) -> dict:
        """Every field as plain data, ready for `json.dumps`."""
        return self.model_dump()
