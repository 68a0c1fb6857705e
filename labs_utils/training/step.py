"""The training step that `dry_run` and `measure` both run: one run's real model, optimizer and batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from labs_utils.precision import BF16, FP16, FP32, PRECISIONS
from labs_utils.profiling.tracker import host_memory
from labs_utils.run import Run

DTYPES = {FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}
WEIGHT_DTYPE = {name: DTYPES[each.weight] for name, each in PRECISIONS.items()}
AUTOCAST_DTYPE = {name: DTYPES[each.autocast] for name, each in PRECISIONS.items() if each.autocast in DTYPES}
SDPA_BACKENDS = {
    "sdpa": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "sdpa-efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "sdpa-cudnn": [SDPBackend.CUDNN_ATTENTION],
    "sdpa-math": [SDPBackend.MATH],
}
ATTENTION_OPERATORS = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "flash_attn::_flash_attn_forward",
)
IGNORED_LABEL = -100


class TrainingStep:
    """One run's model, optimizer and batch on a device; calling it runs one optimizer step.

    `on_phase` is called with "forward", "backward" or "optimizer" as each begins.
    """

    def __init__(self, run: Run, device: str | torch.device):
        self.run, self.device = run, torch.device(device)
        self.model = build_model(run, self.device)
        self.optimizer = build_optimizer(run, self.model.parameters())
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16-mixed")
        self.batch = build_batch(run, self.device)

    def __call__(self, on_phase: Callable[[str], None] = lambda name: None, micro_steps: int | None = None) -> None:
        for _ in range(micro_steps or self.run.grad_accum):
            self.micro_step(on_phase)
        on_phase("optimizer")
        self.optimizer_step()

    def micro_step(self, on_phase: Callable[[str], None]) -> None:
        """Forward and backward of one micro-batch; gradients add up."""
        with attention_backend(self.run):
            on_phase("forward")
            with self.autocast(), saved_tensors(self.run, self.device):
                loss = self.model(**self.batch, use_cache=False).loss / self.run.grad_accum
            on_phase("backward")
            self.backward(loss)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of a micro-batch's share of the loss; in fp16 under autocast the loss is scaled."""
        self.scaler.scale(loss).backward()

    def autocast(self):
        """Autocast for the mixed precisions, nothing for the others."""
        dtype = AUTOCAST_DTYPE.get(self.run.precision)
        return torch.autocast(self.device.type, dtype) if dtype else contextlib.nullcontext()

    def optimizer_step(self) -> None:
        """Update the weights and set the gradients to None."""
        if self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.model.zero_grad(set_to_none=True)


def build_model(run: Run, device: torch.device):
    """A randomly initialised Hugging Face Llama of the run's shape, with its kernels and checkpointing in place."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    if "liger" in (run.layer_kernels, run.loss_kernel):
        patch_with_liger(run)
    config = LlamaConfig(**{**run.model.model_dump(), "num_attention_heads": 1}, max_position_embeddings=run.seq_len)
    config.num_attention_heads = run.model.num_attention_heads  # transformers 5.24 refuses heads that don't divide
    attention = "sdpa" if run.attention.startswith("sdpa") else run.attention
    with device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=WEIGHT_DTYPE[run.precision], attn_implementation=attention
        )
    checkpoint_layers(run, model.model.layers)
    return model.train()


def patch_with_liger(run: Run) -> None:
    """Patch the Llama classes of this process with Liger's kernels, for good: use one process a variant."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    layers = run.layer_kernels == "liger"
    apply_liger_kernel_to_llama(
        rope=layers,
        rms_norm=layers,
        swiglu=layers,
        cross_entropy=False,
        fused_linear_cross_entropy=run.loss_kernel == "liger",
    )


def checkpoint_layers(run: Run, layers: torch.nn.ModuleList) -> None:
    """Make the run's decoder layers recompute in backward instead of saving their activations.

    What another run has made of these layers before is undone.
    """
    for layer in layers:
        vars(layer).pop("forward", None)
    every = run.checkpoint_every or (1 if run.checkpointing.startswith("keep-") else len(layers) + 1)
    if run.checkpointing in ("none", "offload"):
        return
    keywords = {"use_reentrant": False}
    if run.checkpointing.startswith("keep-"):
        keywords["context_fn"] = partial(create_selective_checkpoint_contexts, partial(keep, run.checkpointing))
    for layer in list(layers)[::every]:
        layer.forward = partial(checkpoint, layer.forward, **keywords)


def keep(policy: str, context, operator, *args, **kwargs) -> CheckpointPolicy:
    """Selective checkpointing: save attention's output, and matrix products too under `keep-matmul-attention`."""
    kept = ATTENTION_OPERATORS + (("aten::mm",) if policy == "keep-matmul-attention" else ())
    return CheckpointPolicy.MUST_SAVE if operator.name().split(".")[0] in kept else CheckpointPolicy.PREFER_RECOMPUTE


def saved_tensors(run: Run, device: torch.device):
    """Send every saved tensor to pinned host memory under checkpointing `offload`.

    A CPU has no other memory: there, copies that trackers count as the host's stand for it.
    """
    if run.checkpointing != "offload":
        return contextlib.nullcontext()
    if device.type == "cuda":
        return torch.autograd.graph.save_on_cpu(pin_memory=True)
    return torch.autograd.graph.saved_tensors_hooks(to_host, torch.clone)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, as `torch.autograd.graph.save_on_cpu` makes it: in order, put so on the device."""
    in_order = tensor.contiguous()
    with host_memory():
        return in_order.clone()


def attention_backend(run: Run):
    """The SDPA kernels that the run allows."""
    backends = SDPA_BACKENDS.get(run.attention)
    return sdpa_kernel(backends) if backends else contextlib.nullcontext()


def build_optimizer(run: Run, parameters) -> torch.optim.Optimizer | None:
    """The run's optimizer; None for `none`. Learning rates are tiny, since the weights are random."""
    if run.optimizer == "none":
        return None
    if run.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-6, foreach=False)
    if run.optimizer == "adamw-8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-6)
    implementation = {"adamw": {"fused": True}, "adamw-foreach": {"foreach": True}, "adamw-loop": {"foreach": False}}
    return torch.optim.AdamW(parameters, lr=1e-6, **implementation[run.optimizer])


def build_batch(run: Run, device: torch.device) -> dict[str, torch.Tensor]:
    """Random token ids and labels of shape (micro_batch, seq_len); with `padded`, a quarter of a row is padding."""
    ids = torch.randint(run.model.vocab_size, (run.micro_batch, run.seq_len), device=device)
    if not run.padded:
        return {"input_ids": ids, "labels": ids.clone()}
    mask = torch.ones_like(ids)
    mask[0, -max(1, run.seq_len // 4) :] = 0
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, IGNORED_LABEL), "attention_mask": mask}
