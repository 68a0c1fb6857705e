"""What a `Report` says: in tables, and as one sentence a lab on what that lab shows on such a machine."""

from __future__ import annotations

from collections.abc import Sequence

from labs_utils.answers.estimate import estimate
from labs_utils.device import H200
from labs_utils.doctor.report import FLASH_CAPABILITY, Package, Report
from labs_utils.figures.tables import print_table
from labs_utils.run import LLAMA_8B, Run
from labs_utils.time_model.subjects import TO_DEVICE, copy
from labs_utils.units import worded_bytes

OLD_CAPABILITY = 7.5  # Turing; newer builds of torch know nothing older
Table = tuple[Sequence[str], list[Sequence]]


def tables(report: Report) -> dict[str, Table]:
    """Columns and rows under "machine", "rates", "packages" and "labs", and "details" where there are any."""
    source = "measured here" if report.source == "measured" else "data sheet"
    rates = [(rate.subject, str(rate), _size(rate.shape)) for rate in report.rates]
    packages = [(each.name, each.verdict, each.why, "" if each.works else each.instead) for each in report.packages]
    details = [(each.subject, str(each), _size(each.shape)) for each in report.details]
    details += [(remark, "", "") for remark in report.remarks]
    return {
        "machine": ((report.title, ""), machine_rows(report)),
        "rates": (("what", source, "size"), rates),
        "packages": (("package", "here", "how, or why not", "shown instead"), packages),
        "labs": (("lab", f"what it shows on: {report.title}"), consequences(report)),
        **({"details": (("what a step's time is made of", source, "size"), details)} if details else {}),
    }


def print_tables(report: Report) -> None:
    """Print the tables in a terminal."""
    for columns, rows in tables(report).values():
        print_table(columns, rows)


def machine_rows(report: Report) -> list[tuple[str, str]]:
    """What was read off, without what isn't known or isn't there."""
    machine = report.machine
    rows = {
        "tier": tier(report),
        "remark": machine.remark,
        "GPUs": machine.gpus or "",
        "memory of the GPU": worded_bytes(machine.memory_bytes) if machine.is_gpu and machine.memory_bytes else "",
        "compute capability": machine.compute_capability or "",
        "driver": machine.driver or "",
        "cores": machine.cores or "",
        "memory of the host": worded_bytes(machine.host_memory_bytes) if machine.host_memory_bytes else "",
        **report.versions,
    }
    return [(name, str(value)) for name, value in rows.items() if value != ""]


def tier(report: Report) -> str:
    """One of "no GPU", "GPU without bf16" and "GPU with bf16"."""
    return "no GPU" if not report.machine.is_gpu else "GPU with bf16" if report.has_bf16 else "GPU without bf16"


def consequences(report: Report) -> list[tuple[str, str]]:
    """Lab and sentence: what each lab shows on the machine of this report."""
    return [
        ("all", _precision(report)),
        ("01 forward and backward memory", _memory(report)),
        ("02 activation checkpointing", _checkpointing(report)),
        ("03 batch size", _batch(report)),
        ("04 ZeRO stages", _zero(report)),
        ("05 ZeRO-Offload", _offload(report)),
        ("06 FlashAttention", _attention(report)),
        ("07 Liger Kernel", _kernels(report, "liger_kernel", "Chunked and fused losses")),
        ("08 quantization", _kernels(report, "bitsandbytes", "bitsandbytes' int8 and NF4")),
        ("09 plan a run", "Plans are for any device in data/gpus.csv; what fits here can be carried out here."),
    ]


def _precision(report: Report) -> str:
    if not report.machine.is_gpu:
        return "Small models run live on the CPU, in fp32 or in bf16; bf16 is slow where the CPU has no units for it."
    if report.has_bf16:
        return "In 16 bits, live runs on the GPU use bf16."
    build = "; it needs a CUDA 12 build of torch (README)" if report.machine.compute_capability < OLD_CAPABILITY else ""
    return f"In 16 bits, live runs on the GPU use fp16 with loss scaling, because it has no bf16{build}."


def _memory(report: Report) -> str:
    if not report.machine.is_gpu:
        return "A small model runs live, its tensors counted; the 8B model is a dry run, and recorded on an H200."
    live = "Real steps of the largest model that fits run live on the GPU, beside the estimates"
    needed_bytes = estimate(Run(model=LLAMA_8B, seq_len=512), H200).peak_bytes
    if report.has_bf16 and needed_bytes < (report.machine.memory_bytes or 0):
        return f"{live}; at short sequences that is the 8B model."
    return f"{live}; the 8B model is a dry run, and recorded on an H200."


def _checkpointing(report: Report) -> str:
    if not report.machine.is_gpu:
        return "Saved bytes and the time of recomputing are measured live on the CPU, with a small model."
    return "Saved bytes are counted live on the CPU; the time of recomputing is measured on the GPU, in fp32."


def _batch(report: Report) -> str:
    on_cpu = "Equality with the full batch and memory by micro-step are measured live on the CPU, with a small model"
    if not report.machine.is_gpu:
        return f"{on_cpu}, and tokens a second too."
    return f"{on_cpu}; tokens a second and the largest micro-batch that fits are measured on the GPU, in fp32."


def _zero(report: Report) -> str:
    deepspeed, gpus = report.package("deepspeed"), report.machine.gpus
    on_cpu = "processes on the CPU, over gloo"
    if deepspeed.works is False:
        return _without(deepspeed)
    if gpus > 1:
        return f"DeepSpeed runs live with a rank on each of {gpus} GPUs; more ranks than that are {on_cpu}."
    recorded = "ranks with a GPU each are recorded"
    if report.machine.is_gpu:
        return f"DeepSpeed's stages run live with one rank on the GPU; several ranks are {on_cpu}, and {recorded}."
    return f"DeepSpeed's ranks are {on_cpu}; {recorded}."


def _offload(report: Report) -> str:
    deepspeed, rate = report.package("deepspeed"), report.rate(copy(TO_DEVICE))
    if deepspeed.works is False:
        return _without(deepspeed)
    if rate is None:
        return "Bytes that move are counted live; how long they take on a GPU is recorded."
    source = "measured" if report.source == "measured" else "by the data sheet"
    return f"Bytes that move are counted live; the link to the GPU carries {rate} ({source})."


def _attention(report: Report) -> str:
    flash = report.package("flash_attn")
    if not report.machine.is_gpu:
        return "Tiles run in PyTorch and our Triton kernel in its interpreter, in fp32; speeds are recorded on an H200."
    if report.machine.compute_capability < FLASH_CAPABILITY:
        return "PyTorch's memory-efficient kernel runs live in fp16; flash kernels need newer GPUs, and are recorded."
    if flash.works is False:
        return f"Our Triton kernel runs live; flash-attn doesn't work here, so the lab shows {flash.instead}."
    return "Our Triton kernel, PyTorch's flash and cuDNN kernels and, where installed, flash-attn run live in bf16."


def _kernels(report: Report, name: str, kernels: str) -> str:
    package = report.package(name)
    if package.works is False:
        return _without(package)
    if not report.machine.is_gpu:
        return f"{kernels} run live on the CPU, at small sizes; speeds are recorded on an H200."
    return f"{kernels} run live on the GPU, at sizes that fit{'' if package.works else ', where the package works'}."


def _without(package: Package) -> str:
    return f"{package.name} doesn't work here, so the lab shows {package.instead}."


def _size(shape: dict[str, int]) -> str:
    """Such as "256.0 MiB", "1,024 × 1,024 × 1,024", or "512 seq_len, 32 heads"."""
    if set(shape) == set("mnk"):
        return " × ".join(f"{side:,}" for side in shape.values())
    sizes = [worded_bytes(size) if name == "bytes" else f"{size:,} {name}" for name, size in shape.items()]
    return ", ".join(sizes)
