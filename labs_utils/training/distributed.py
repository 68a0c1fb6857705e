"""The training step on several ranks: `DdpStep` and `DeepSpeedStep`, used as `TrainingStep` is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch
import torch.distributed as dist

from labs_utils.run import Run
from labs_utils.training.cpu_adam import compiled_cpu_adam
from labs_utils.training.deepspeed_config import deepspeed_config
from labs_utils.training.step import TrainingStep, build_batch, build_model, build_optimizer

MODEL_SEED = 0


def build_step(run: Run, device: torch.device, compiled: bool = False) -> TrainingStep:
    """The run's step on this rank, with the process group that it needs; `compiled` is for `DeepSpeedStep`.

    All ranks begin with the same weights, and each has its own batch: that of the seed `batch_seed(rank)`.
    """
    start_process_group(run, device)
    torch.manual_seed(MODEL_SEED)
    return DeepSpeedStep(run, device, compiled) if run.engine == "deepspeed" else DdpStep(run, device)


def start_process_group(run: Run, device: torch.device) -> None:
    """NCCL between GPUs, gloo on a CPU: there without DeepSpeed's own operator, which would have to be compiled."""
    for name, value in {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 0,
    }.items():
        os.environ.setdefault(name, str(value))  # a process that no launcher has started is alone
    if run.engine == "ddp":
        start_links(device)
        return
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # before DeepSpeed looks for a GPU that is not to be used
    import deepspeed

    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(backend_of(device), verbose=False)


def start_links(device: torch.device) -> None:
    """The process group of plain PyTorch, if there is none yet."""
    if not dist.is_initialized():
        dist.init_process_group(backend_of(device))


def backend_of(device: torch.device) -> str:
    """The backend of `torch.distributed` for ranks on such devices.

    >>> backend_of(torch.device("cpu"))
    'gloo'
    """
    return "nccl" if device.type == "cuda" else "gloo"


def batch_seed(rank: int) -> int:
    """The seed of a rank's batch."""
    return 1 + rank


class DdpStep(TrainingStep):
    """`torch.nn.parallel.DistributedDataParallel`: whole weights on each rank, gradients averaged once a step.

    Gradients are views of the buckets that are sent, so that there is no second copy of them.
    """

    def __init__(self, run: Run, device: torch.device):
        super().__init__(run, device)
        torch.manual_seed(batch_seed(dist.get_rank()))
        self.batch = build_batch(run, device)
        self.buckets: list[torch.Tensor] = []  # they outlive the gradients, and DDP doesn't show them
        self.model = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def __call__(self, on_phase: Callable[[str], None] = lambda name: None, micro_steps: int | None = None) -> None:
        micro_steps = micro_steps or self.run.grad_accum
        for remaining in reversed(range(micro_steps)):
            with self.model.no_sync() if remaining else contextlib.nullcontext():
                self.micro_step(on_phase)
        self.buckets = [parameter.grad for parameter in self.model.parameters()]
        on_phase("optimizer")
        self.optimizer_step()


class DeepSpeedStep(TrainingStep):
    """A DeepSpeed engine around the same model, optimizer and batch; `zero_stage` says what is partitioned.

    `compiled` says whether DeepSpeed's CPU Adam is there for a run that offloads; else PyTorch's fused one works there.
    """

    def __init__(self, run: Run, device: torch.device, compiled: bool = False):
        import deepspeed

        self.run, self.device, self.compiled = run, device, compiled
        config = deepspeed_config(run, pin_memory=device.type == "cuda")
        with partitioned_when_made(config) if run.zero_stage == 3 else contextlib.nullcontext():
            model = build_model(run, device)
        optimizer = self._build_optimizer(model.parameters())
        self.model, self.zero_optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self.optimizer = self.model.basic_optimizer
        torch.manual_seed(batch_seed(dist.get_rank()))
        self.batch = build_batch(run, device)

    def _build_optimizer(self, parameters):
        """The run's optimizer; offloaded from a GPU, `adamw` is DeepSpeed's CPU Adam, if it could be compiled."""
        if self.run.offload != "none" and self.run.optimizer == "adamw" and self.compiled:
            return compiled_cpu_adam(parameters, wide_moments=self.run.precision != "bf16")
        return build_optimizer(self.run, parameters)

    def __call__(self, on_phase: Callable[[str], None] = lambda name: None, micro_steps: int | None = None) -> None:
        """One step of the engine; it always takes the run's number of micro-steps."""
        for remaining in reversed(range(self.run.grad_accum)):
            self.micro_step(on_phase)
            if not remaining:
                on_phase("optimizer")
            self.model.step()

    def backward(self, loss: torch.Tensor) -> None:
        self.model.backward(loss, scale_wrt_gas=False)  # the loss is divided by `grad_accum` already


@contextlib.contextmanager
def partitioned_when_made(config: dict) -> Iterator[None]:
    """Partition each weight of a model that is built inside as soon as it is made, so that it is never whole.

    transformers draws the weights of one module after another, each time when they are gathered once more: they are
    those of a model that is built whole. Nothing is overridden, else rotary frequencies would lose their fp32.
    """
    import deepspeed
    from transformers import LlamaPreTrainedModel

    draw = LlamaPreTrainedModel._init_weights

    def draw_gathered(model, module) -> None:
        with deepspeed.zero.GatheredParameters(module.parameters(recurse=False), modifier_rank=0):
            draw(model, module)

    with (
        deepspeed.zero.Init(config_dict_or_path=config, tensor_overrides=[]),
        patch.object(LlamaPreTrainedModel, "_init_weights", draw_gathered),
    ):
        yield
