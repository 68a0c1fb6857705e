"""`RankReport`: what one rank of several says about one run."""

from __future__ import annotations

from pydantic import BaseModel

from labs_utils.answer import Answer

BytesHeld = dict[str, dict[str, int]]  # by kind and device: {"moments": {"cpu": 1000}, …}


class RankReport(BaseModel, frozen=True, extra="forbid"):
    """What one rank held, sent and took in one run. What is None was not to be had: its comment says when.

    Everything but `answer` is of the last of the first steps, or of setting up. Names end in their unit.
    """

    answer: Answer | None  # peak and time as measured on this rank; None if that wasn't asked for
    losses: list[float]  # of the first steps, each the mean of its micro-steps
    threads_per_rank: int  # with which it computes on the host
    environment: dict[str, str] | None = None  # settings of how memory is allocated, if there are any
    set_up_peak_bytes: int | None = None  # of the GPU while the model and its optimizer were made
    held_after_forward_bytes: BytesHeld
    held_between_bytes: BytesHeld | None = None  # before the last micro-step, if there are several
    held_bytes: BytesHeld  # after backward
    communicated: dict[str, dict[str, int]]  # {"all_gather": {"calls", "bytes"}, …}: `CommunicationCounter`
    split_seconds: dict[str, float]  # of each phase, of transfers and of the host's work: `StepClock`
    copies: dict[str, dict[str, dict[str, int | float]]]  # between device and host, by phase and direction: `StepClock`
    moved_bytes: dict[str, int]  # the bytes of `copies` in each direction
    cpu_adam: str | None = None  # which Adam works on the host; None without offload, as the next two
    host_bytes: int | None = None  # what DeepSpeed keeps on the host
    host_memory: dict[str, int] | None = None  # the same by how it is allocated, and what the process has altogether

    def to_dict(self) -> dict:
        """Plain data for JSON, without what is None; `answer` is always there."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return {"answer": None, **given}

    def provenance(self) -> dict:
        """What an answer about all ranks tells of this one."""
        return {name: value for name, value in self.to_dict().items() if name not in ("answer", "losses")}
