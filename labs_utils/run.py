"""`Run`: what is trained and how, in one validated, frozen record that goes to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from labs_utils.model_config import short
from labs_utils.model_shape import LLAMA_1B, LLAMA_8B, LLAMA_125M, PRESETS, TINY, Count, ModelShape

__all__ = [
    "LLAMA_125M", "LLAMA_1B", "LLAMA_8B", "PRESETS", "TINY", "ModelShape", "Run", "RunError", "read_runs",
]  # fmt: skip


class RunError(ValueError):
    """A run that can't be: one sentence naming the field, the value and what to do."""


def _preset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in PRESETS:
        raise ValueError(f"{short(value)} is not a preset; known: {', '.join(PRESETS)}")
    return PRESETS[value]


def _checkpointing(value: Any) -> Any:
    named = ("none", "full", "keep-attention", "keep-matmul-attention", "offload")
    step = value.removeprefix("every-") if isinstance(value, str) else ""
    if value in named or (step.isascii() and step.isdigit() and step == str(int(step)) and 1 <= int(step) <= 1000):
        return value
    raise ValueError(f"{short(value)} is not one of {', '.join(named)} or every-K, 1 ≤ K ≤ 1000")


class Run(BaseModel, frozen=True, strict=True, extra="forbid"):
    """What is trained, and how. Fields, values and defaults are those of the course's README.

    Raises:
        RunError: through `Run.parse` and `run.replace`, one sentence; pydantic's own error from the constructor.
    """

    model: Annotated[ModelShape, BeforeValidator(_preset)] = TINY
    mode: Literal["train", "infer"] = "train"
    engine: Literal["torch", "ddp", "deepspeed"] = "torch"
    seq_len: Count = 4096
    micro_batch: Count = 1
    grad_accum: Count = 1
    padded: bool = False
    compile: bool = False
    precision: Literal["fp32", "bf16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master"] = "bf16"
    optimizer: Literal["adamw", "adamw-foreach", "adamw-loop", "adamw-8bit", "sgd", "none"] = "adamw"
    attention: Literal["sdpa", "sdpa-efficient", "sdpa-cudnn", "sdpa-math", "eager", "flash_attention_2"] = "sdpa"
    checkpointing: Annotated[str, BeforeValidator(_checkpointing)] = "none"
    layer_kernels: Literal["torch", "liger"] = "torch"
    loss_kernel: Literal["torch", "liger"] = "torch"
    weights: Literal["plain", "int8", "nf4"] = "plain"
    lora_rank: Annotated[int, Field(ge=0, le=2**16)] = 0
    kv_len: Annotated[int, Field(ge=0, le=2**24)] = 0
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    world_size: Annotated[int, Field(ge=1, le=2**16)] = 1
    offload: Literal["none", "optimizer", "all"] = "none"
    zero: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _zero_means_deepspeed(cls, data: Any) -> Any:
        if isinstance(data, dict) and "engine" not in data and data.get("zero_stage") in (1, 2, 3):
            return {**data, "engine": "deepspeed"}
        return data

    @model_validator(mode="after")
    def _fields_agree(self) -> Run:
        if self.zero_stage and self.engine != "deepspeed":
            raise ValueError(f"zero_stage {self.zero_stage} needs engine 'deepspeed', not {self.engine!r}")
        if self.kv_len and self.mode == "train":
            raise ValueError(f"kv_len {self.kv_len} is for mode 'infer'; training keeps no cache")
        if reason := self.model.why_not_tokens(self.kv_len + self.seq_len):
            raise ValueError(f"model: {reason}")
        return self

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch: `micro_batch * seq_len`."""
        return self.micro_batch * self.seq_len

    @property
    def checkpoint_every(self) -> int:
        """Of how many layers one is checkpointed as a whole: 1 for `full`, K for `every-K`, 0 where none is."""
        if self.checkpointing.startswith("every-"):
            return int(self.checkpointing.removeprefix("every-"))
        return int(self.checkpointing == "full")

    @classmethod
    def parse(cls, data: Any) -> Run:
        """A run from plain data (a dict as read from JSON); defaults fill what is left out.

        Raises:
            RunError: one sentence with the field and the value.
        """
        if not isinstance(data, dict):
            raise RunError(f"a run is a JSON object, not {short(data)}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RunError(_sentence(error)) from None

    def replace(self, **changes: Any) -> Run:
        """This run with some fields changed, checked again. Raises `RunError`."""
        return Run.parse({**self.to_dict(), "model": self.model, **changes})

    def to_dict(self) -> dict:
        """Every field as plain data, ready for `json.dumps`; `Run.parse` reads it back."""
        return self.model_dump()


def _sentence(error: ValidationError) -> str:
    """One sentence from pydantic's first complaint: the field, the value and what it should be."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{short(field)} is not a field of a run; known: {', '.join(Run.model_fields)}"
    if first["type"] == "missing":
        return f"{field} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{field}: {message}" if field else message
    return f"{field} is {short(first['input'])}: {message[0].lower()}{message[1:]}"


def read_runs(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, Run | RunError]]:
    """Runs of a JSONL stream: `(line number, run)`, or a `RunError` in the place of a line that can't be read.

    A line is a run, or an object whose `run` is one. Blank lines are passed over.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _read_line(line)
            except RunError as error:
                yield number, RunError(f"{source}, line {number}: {error}")


def _read_line(line: bytes) -> Run:
    try:
        data = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RunError("is not UTF-8 text; a runs file holds one JSON object a line") from None
    except json.JSONDecodeError as error:
        raise RunError(f"is not a complete JSON object ({error.msg})") from None
    except (RecursionError, ValueError):  # Python reads no more than 4300 digits
        raise RunError("is nested too deeply, or holds a number of too many digits") from None
    return Run.parse(data["run"] if isinstance(data, dict) and "run" in data else data)
