"""What a training step's time is made of, measured one by one: `labs doctor --full`, some minutes on a GPU.

Products, attention, passes over memory, optimizers, copies to the host, collectives, what the host computes for an
offloaded optimizer, and the host's own time: that of steps so small that the GPU waits for Python.
`labs_utils.time_model.step` and `labs_utils.time_model.offload` put them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from labs_utils.doctor.attention_rates import ways_to_attend
from labs_utils.doctor.machine_rates import COPIED_BYTES, Measured, Rate, fp32_products_in, types_for
from labs_utils.doctor.rank_rates import collectives, host_alone, host_of_all_ranks, host_of_engines
from labs_utils.profiling.timing import back_to_back, time_calls
from labs_utils.run import Run
from labs_utils.time_model import subjects

CUBES = (512, 1024, 2048, 4096, 8192)
LINEARS = (
    (512, 4096, 4096), (512, 14336, 4096), (512, 128256, 4096), (1024, 8192, 2048), (2048, 512, 2048),
    (2048, 8192, 2048), (2048, 128256, 2048), (4096, 1024, 4096), (4096, 14336, 4096), (4096, 128256, 4096),
    (8192, 768, 768), (8192, 2048, 768), (16384, 14336, 4096),
)  # fmt: skip
HEADS, KV_HEADS = 32, 8
LENGTHS, HEAD_DIMS = (512, 2048, 8192, 16384), (64, 128)
PASS_ROWS, PASS_COLUMNS = (512, 2048, 8192), 4096
ADAM_TENSORS, ADAM_ROWS = 16, 4096
Section = Callable[[], Iterator[Measured]]


def measured_in_full(device: str, capability: float, gpus: int, only: str = "") -> tuple[list[Measured], list[str]]:
    """What can be measured on "cpu" or "cuda", of parts named with `only`; and a sentence for each that can't."""
    rates, remarks = [], []
    parts = sections(device, capability, gpus)
    for name, section in ((name, parts[name]) for name in parts if only in name):
        try:
            rates.extend(section())
        except Exception as error:  # whatever it is, the other parts are measured
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            remarks.append(f"{name} can't be measured here: {first_line}")
    if device == "cpu":
        remarks.append("There is no GPU here: its products, attention and passes, and the host's time, are left out.")
    elif gpus < 2:
        remarks.append("There is one GPU here: collectives are left out.")
    return rates, remarks


def sections(device: str, capability: float, gpus: int) -> dict[str, Section]:
    """What is measured, by the name under which it is missed."""
    if device == "cpu":
        return {"the host's work for all ranks": partial(host_of_all_ranks, 1)}
    types = [name for name in types_for(device, capability) if name != "tf32"]
    half = "bf16" if "bf16" in types else "fp16"
    on_gpu = {
        **{f"products in {name}": partial(products, name, CUBES) for name in types},
        "linear layers": partial(linears, half),
        **{f"{kernel} attention": partial(attention, kernel, half) for kernel in ("flash", "cudnn", "efficient")},
        "ways to attend": partial(ways_to_attend, half),
        "passes over memory": partial(passes, half),
    }
    optimizers = [(name, half) for name in ("adamw", "adamw-foreach", "adamw-loop", "sgd", "adamw-8bit")]
    return {
        **on_gpu,
        **{subjects.optimizer(*each): partial(optimizer, *each) for each in [*optimizers, ("adamw", "fp32")]},
        "copies to the host": copies_to_host,
        "the host's work for all ranks": partial(host_of_all_ranks, gpus),
        "the host's time for PyTorch": host_alone,
        "the host's time for DDP and DeepSpeed": partial(host_of_engines, min(2, gpus)),
        **({"collectives": partial(collectives, gpus)} if gpus > 1 else {}),
    }


def dtype(name: str):
    """The `torch.dtype` of a short name."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def products(name: str, sizes: tuple[int, ...]) -> Iterator[Rate]:
    """Square matrices of several sizes, back to back."""
    import torch

    with fp32_products_in(name):
        for size in sizes:
            left, right = (torch.randn(size, size, device="cuda").to(dtype(name)) for _ in range(2))
            seconds = back_to_back(lambda left=left, right=right: left @ right)
            shape = dict.fromkeys("mnk", size)
            per_second = seconds.rate(2 * size**3)
            yield Rate(subject=subjects.product(name), shape=shape, per_second=per_second, unit="FLOP/s")


def linears(name: str) -> Iterator[Rate]:
    """The three products of a linear layer's forward and backward: m tokens, n outputs, k inputs."""
    import torch

    for tokens, outputs, inputs in LINEARS:
        sizes = ((tokens, inputs), (outputs, inputs), (tokens, outputs))
        x, weight, gradient = (torch.randn(size, device="cuda").to(dtype(name)) for size in sizes)
        seconds = back_to_back(lambda x=x, w=weight, g=gradient: (x @ w.t(), g.t() @ x, g @ w))
        per_second = seconds.rate(6 * tokens * outputs * inputs)
        shape = {"m": tokens, "n": outputs, "k": inputs}
        yield Rate(subject=f"linear {name}, forward and backward", shape=shape, per_second=per_second, unit="FLOP/s")


def attention(kernel: str, name: str) -> Iterator[Rate]:
    """Causal attention, forward and backward: two and five products of the half of the scores that counts."""
    for head_dim in HEAD_DIMS:
        for length in LENGTHS:
            shape = {"seq_len": length, "heads": HEADS, "head_dim": head_dim}
            products = {"forward": 2, "backward": 5}
            for part, work in attention_work(kernel, name, length, head_dim).items():
                per_second = back_to_back(work).rate(products[part] * HEADS * length**2 * head_dim)
                yield Rate(subject=subjects.attention(kernel, part), shape=shape, per_second=per_second, unit="FLOP/s")


def attention_work(kernel: str, name: str, length: int, head_dim: int) -> dict[str, Callable[[], object]]:
    """Calls for a forward without gradients, and for a backward."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, {"cudnn": "CUDNN"}.get(kernel, kernel.upper()) + "_ATTENTION")
    kv_heads = HEADS if kernel == "efficient" else KV_HEADS  # that kernel has no grouped heads
    q, k, v = (
        torch.randn(1, length, heads, head_dim, device="cuda").to(dtype(name)).transpose(1, 2).requires_grad_()
        for heads in (HEADS, kv_heads, kv_heads)
    )
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True, enable_gqa=kv_heads != HEADS)
    with sdpa_kernel([backend]):
        output = attend(q, k, v)
    gradient = torch.randn_like(output)

    def forward():
        with torch.no_grad(), sdpa_kernel([backend]):
            return attend(q, k, v)

    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True),
    }


def passes(name: str) -> Iterator[Rate]:
    """Operators bound by memory, on tensors of several sizes: bytes read and written a second."""
    import torch

    for rows in PASS_ROWS:
        x = torch.randn(rows, PASS_COLUMNS, device="cuda").to(dtype(name))
        wide, elements = x.float(), rows * PASS_COLUMNS
        heads = x.view(rows, 32, -1).transpose(0, 1)
        works = {
            "add": (lambda x=x: x + x, 4 * elements),  # read once, since it is the same tensor twice
            "mul": (lambda wide=wide: wide * wide, 8 * elements),
            "to": (lambda x=x: x.float(), 6 * elements),
            "mean": (lambda wide=wide: wide.mean(-1), 4 * elements),
            "sum": (lambda x=x: x.sum(0), 2 * elements),
            "clone": (lambda heads=heads: heads.contiguous(), 4 * elements),
            "log_softmax": (lambda wide=wide: wide.log_softmax(-1), 8 * elements),
            "norm": (lambda x=x: x.double().norm(2), 18 * elements),
        }
        for operator, (work, nbytes) in works.items():
            per_second = back_to_back(work).rate(nbytes)
            subject = subjects.memory_pass(operator, name)
            yield Rate(subject=subject, shape={"bytes": nbytes}, per_second=per_second, unit="bytes/s")


def optimizer(name: str, weights: str) -> Iterator[Rate]:
    """Parameters a second of an optimizer's step on the GPU, over a few large tensors."""
    import torch

    from labs_utils.training.step import build_optimizer

    parameters = [
        torch.nn.Parameter(torch.randn(ADAM_ROWS, ADAM_ROWS, device="cuda").to(dtype(weights)))
        for _ in range(ADAM_TENSORS)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = build_optimizer(Run(optimizer=name), parameters).step
    elements = ADAM_TENSORS * ADAM_ROWS**2
    per_second = back_to_back(step).rate(elements)
    shape = {"elements": elements, "tensors": ADAM_TENSORS}
    yield Rate(subject=subjects.optimizer(name, weights), shape=shape, per_second=per_second, unit="parameters/s")


def copies_to_host() -> Iterator[Rate]:
    """Bytes a second from the GPU into pinned and into pageable memory."""
    import torch

    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    pageable = torch.zeros(COPIED_BYTES, dtype=torch.uint8)
    for pinned, target in {True: pageable.pin_memory(), False: pageable}.items():
        seconds = time_calls(lambda target=target: target.copy_(source, non_blocking=True), "cuda")
        yield Rate(
            subject=subjects.copy(subjects.TO_HOST, pinned),
            shape={"bytes": COPIED_BYTES},
            per_second=seconds.rate(COPIED_BYTES),
            unit="bytes/s",
        )
