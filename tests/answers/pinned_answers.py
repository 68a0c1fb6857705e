"""The runs whose answers are pinned, and the lines that pin them: answers change only on purpose.

python tests/answers/pinned_answers.py    # after a change that is meant: writes pinned.jsonl anew
"""

import json
import random
import sys
from itertools import chain
from pathlib import Path

from labs_utils import Run, estimate

LINES = Path(__file__).with_name("pinned.jsonl")
SHAPE = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "head_dim": 16,
}  # fmt: skip
LARGE = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 32000, "head_dim": 128,
}  # fmt: skip
CHECKPOINTINGS = ("none", "full", "every-2", "every-3", "keep-attention", "keep-matmul-attention", "offload")
ATTENTIONS = ("sdpa", "sdpa-efficient", "sdpa-cudnn", "sdpa-math", "eager", "flash_attention_2")
PRECISIONS = ("fp32", "bf16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master")
OPTIMIZERS = ("adamw", "adamw-foreach", "adamw-loop", "adamw-8bit", "sgd", "none")
DEVICES = ("cpu", "H200", "V100-32GB", "T4", "A100-80GB")
ZERO = {"precision": "bf16-master", "engine": "deepspeed", "world_size": 2}
LIGER = {"layer_kernels": "liger", "loss_kernel": "liger"}


def shape(**changes):
    return {**SHAPE, **changes}


def plain_runs():
    """One device, every value of every field at least twice, and what no method covers."""
    for number, attention in enumerate(ATTENTIONS):
        for checkpointing in CHECKPOINTINGS:
            yield {"attention": attention, "checkpointing": checkpointing, "seq_len": 130}, ("cpu", "H200")[number % 2]
    for precision in PRECISIONS:
        for optimizer in OPTIMIZERS:
            yield {"precision": precision, "optimizer": optimizer, "seq_len": 96, "micro_batch": 2}, "H200"
        for device in DEVICES:
            yield {"precision": precision, "model": LARGE, "seq_len": 512}, device
    for device in DEVICES:
        yield {"padded": True, "micro_batch": 2, "model": LARGE, "seq_len": 200}, device
        yield {"model": shape(num_key_value_heads=4), "seq_len": 300}, device
        yield {"model": shape(num_key_value_heads=1, tie_word_embeddings=True), "seq_len": 33, **LIGER}, device
        yield {"model": shape(tie_word_embeddings=True), "precision": "bf16-mixed", "seq_len": 16}, device
        yield {"model": "llama-3.1-8b", "seq_len": 2048}, device
    for seq_len in (1, 2, 64, 65, 127, 128, 129, 3071, 3072, 3073):  # the embedding's backward sorts above 3072 tokens
        yield {"seq_len": seq_len, "optimizer": "sgd", "model": LARGE, "checkpointing": "full"}, "H200"
        yield (
            {"seq_len": seq_len, "micro_batch": 3, "attention": "eager", "model": shape(num_key_value_heads=1)},
            "H200",
        )
    for tokens in (96, 1000, 2048, 2049):
        yield {"seq_len": tokens, "model": LARGE, "precision": "bf16-mixed", **LIGER}, "H200"
        yield {"seq_len": tokens, "model": LARGE, "loss_kernel": "liger", "grad_accum": 2}, "H200"
    for grad_accum in (2, 3, 8):
        yield {"grad_accum": grad_accum, "seq_len": 64}, "H200"
        yield {"grad_accum": grad_accum, "seq_len": 64, "checkpointing": "every-2", "precision": "fp16-mixed"}, "H200"
    yield (
        {"model": shape(hidden_size=64, vocab_size=64), "optimizer": "adamw-8bit", "seq_len": 64},
        "cpu",
    )  # 4096 elements
    yield {"model": shape(hidden_size=63, vocab_size=65, head_dim=16), "optimizer": "adamw-8bit", "seq_len": 64}, "cpu"
    for changes in NOT_COVERED:
        for device in ("cpu", "H200", "T4"):
            yield {"seq_len": 32, **changes}, device
    for tokens in (7000, 9000, 16384, 65536):
        yield {"model": "llama-3.1-8b", "seq_len": tokens, "optimizer": "sgd"}, "A100-80GB"
    yield {"model": "llama-3.2-1b", "seq_len": 2048, "micro_batch": 10, "grad_accum": 1}, "A100-80GB"


NOT_COVERED = (
    {"mode": "infer"}, {"weights": "nf4"}, {"lora_rank": 8}, {"compile": True}, {"world_size": 2}, {"offload": "all"},
    {"zero": {"overlap_comm": True}}, {"precision": "bf16-master"}, {"engine": "ddp", "precision": "bf16-master"},
    {"engine": "ddp", "offload": "optimizer"}, {"engine": "ddp", "zero": {"overlap_comm": True}},
    {"checkpointing": "keep-attention", "attention": "eager"}, {"checkpointing": "keep-attention", "precision": "fp32"},
    {"padded": True, "attention": "flash_attention_2"}, {"padded": True, "attention": "sdpa-math"},
    {"padded": True, "checkpointing": "offload"}, {"attention": "flash_attention_2", "precision": "fp32"},
    {"attention": "sdpa-cudnn", "precision": "fp32"}, {"attention": "sdpa-cudnn"}, {"attention": "sdpa-efficient"},
    {"model": shape(head_dim=258)}, {"model": shape(head_dim=256)}, {"attention": "sdpa-efficient", "padded": True},
    {"model": shape(head_dim=258), "attention": "eager"},
    {"model": shape(num_key_value_heads=4), "attention": "sdpa-efficient"},
)  # fmt: skip


def data_parallel_runs():
    """DDP and stages 0 to 2, with buckets that are just filled, just too small, and far too large."""
    largest = SHAPE["vocab_size"] * SHAPE["hidden_size"]  # 32,000 elements; gate, up and down have 11,264
    for engine in ({"engine": "ddp", "precision": "fp32"}, {**ZERO, "precision": "fp32"}, ZERO, {"engine": "ddp"}):
        for grad_accum in (1, 2, 3):
            yield {**engine, "world_size": 2, "grad_accum": grad_accum, "seq_len": 64}, ("cpu", "H200")[grad_accum % 2]
    for stage in (1, 2):
        for bucket in (1, 4096, 11_263, 11_264, 11_265, 22_528, largest - 1, largest, largest + 1, largest + 64, 10**6):
            run = {**ZERO, "zero_stage": stage, "seq_len": 48, "zero": {"reduce_bucket_size": bucket}}
            yield {**run, "world_size": 3}, "cpu"
            yield {**run, "grad_accum": 2, "world_size": 2}, "H200"
        for ranks in (1, 2, 4, 5, 8, 64):
            yield (
                {**ZERO, "zero_stage": stage, "world_size": ranks, "seq_len": 48, "zero": {"reduce_bucket_size": 5000}},
                "cpu",
            )
        for precision in ("fp32", "bf16", "fp16-master"):
            yield {**ZERO, "zero_stage": stage, "precision": precision, "seq_len": 48, "grad_accum": stage}, "H200"
        for overlap in (True, False):
            zero = {"overlap_comm": overlap, "reduce_bucket_size": 9000}
            yield {**ZERO, "zero_stage": stage, "seq_len": 48, "grad_accum": 2, "zero": zero}, "H200"
        for optimizer in ("adamw-foreach", "adamw-loop", "sgd"):
            yield {**ZERO, "zero_stage": stage, "seq_len": 48, "optimizer": optimizer}, "cpu"
    # Five hundred million elements, what DeepSpeed sends and keeps in a bucket by default, in one weight.
    half_a_billion = shape(hidden_size=4000, vocab_size=125_000, intermediate_size=64)
    for stage in (0, 1, 2):
        yield {**ZERO, "model": half_a_billion, "zero_stage": stage, "seq_len": 8}, "cpu"
    yield {**ZERO, "model": half_a_billion, "zero_stage": 0, "seq_len": 8, "precision": "fp32"}, "H200"
    yield {**ZERO, "model": "llama-3.2-1b", "zero_stage": 2, "seq_len": 512, "checkpointing": "full"}, "V100-32GB"
    yield {**ZERO, "model": "llama-3.2-1b", "zero_stage": 1, "seq_len": 512, "world_size": 8}, "T4"


def stage_3_runs():
    """Stage 3: weights at the persistence threshold, buckets just full, limits at the edges of what is gathered."""
    small = {"reduce_bucket_size": 20_000, "stage3_param_persistence_threshold": 100}
    # In a layer: q and o 4096, k and v 2048, gate, up and down 11,264 elements, norms 64.
    for threshold in (0, 63, 64, 2047, 2048, 4095, 4096, 11_264, 40_000):
        zero = {**small, "stage3_param_persistence_threshold": threshold, "stage3_max_reuse_distance": 0}
        yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero}, "cpu"
    for bucket in (1, 11_264, 15_359, 15_360, 15_361, 22_528, 32_000, 33_000, 300_000):
        zero = {**small, "reduce_bucket_size": bucket, "stage3_prefetch_bucket_size": 0}
        yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero, "world_size": 3}, "cpu"
    for prefetch in (0, 1, 2048, 4096, 6000, 11_264, 11_265, 50_000):
        for reuse in (0, 11_264, 20_000):
            zero = {**small, "stage3_prefetch_bucket_size": prefetch, "stage3_max_reuse_distance": reuse}
            yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero, "checkpointing": "full"}, "cpu"
    for live in (0, 4096, 11_264, 50_000, 10**6):
        zero = {**small, "stage3_max_live_parameters": live, "stage3_prefetch_bucket_size": 30_000}
        yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero, "grad_accum": 2}, "H200"
    for size in (1, 5632, 16_000, 16_001, 50_000):
        zero = {**small, "sub_group_size": size}
        yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero}, "H200"
        yield {**ZERO, "zero_stage": 3, "seq_len": 32, "zero": zero, "offload": "optimizer"}, "H200"
    for precision in ("fp32", "bf16", "fp16-master"):
        for ranks in (1, 2, 3):
            yield {**ZERO, "zero_stage": 3, "precision": precision, "world_size": ranks, "seq_len": 32}, "H200"
    for attention, padded in (("eager", False), ("sdpa", True), ("sdpa-math", False)):
        run = {**ZERO, "zero_stage": 3, "seq_len": 32, "attention": attention, "padded": padded}
        yield {**run, "checkpointing": "full", "zero": {**small, "stage3_max_reuse_distance": 0}}, "cpu"
        yield {**run, "checkpointing": "every-2"}, "H200"
    yield {**ZERO, "zero_stage": 3, "model": shape(tie_word_embeddings=True), "seq_len": 32, "zero": small}, "cpu"
    # DeepSpeed's own limits, to the element: 100,000 to stay, 50 million ahead, a billion to a sub-group or to reuse.
    hundred_thousand = shape(hidden_size=400, num_attention_heads=5, num_key_value_heads=5, head_dim=50)
    yield (
        {**ZERO, "zero_stage": 3, "model": hundred_thousand, "seq_len": 8, "zero": {"reduce_bucket_size": 10**6}},
        "cpu",
    )
    fifty_million = shape(hidden_size=5000, intermediate_size=10_000, vocab_size=200, num_hidden_layers=4)
    yield (
        {**ZERO, "zero_stage": 3, "model": fifty_million, "seq_len": 8, "zero": {"stage3_max_reuse_distance": 0}},
        "cpu",
    )
    for vocab_size in (125_000, 124_999):
        billion = shape(hidden_size=8000, vocab_size=vocab_size, intermediate_size=64)
        yield {**ZERO, "zero_stage": 3, "model": billion, "seq_len": 4, "world_size": 1}, "cpu"
        yield {**ZERO, "zero_stage": 3, "model": billion, "seq_len": 4, "checkpointing": "full"}, "H200"


def offloaded_runs():
    """What lies on the host: pinned or not, accumulated there or on the GPU, clipped, in every type."""
    for device in ("cpu", "H200"):
        for stage, offload in ((1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "all")):
            run = {**ZERO, "zero_stage": stage, "offload": offload, "seq_len": 48}
            for precision in ("fp32", "bf16", "bf16-master", "fp16-master"):
                for grad_accum in (1, 3):
                    yield {**run, "precision": precision, "grad_accum": grad_accum}, device
            for ranks in (1, 3):
                yield {**run, "world_size": ranks, "zero": {"reduce_bucket_size": 11_263}}, device
            yield {**run, "zero": {"offload_optimizer": {"pin_memory": False}}, "grad_accum": 2}, device
            yield {**run, "zero": {"gradient_clipping": 1.0}, "optimizer": "sgd"}, device
            yield {**run, "zero": {"gradient_clipping": 0.0}, "model": "llama-3.2-1b", "seq_len": 64}, device
            yield {**run, "zero": {"gradient_clipping": 0.5}, "model": "llama-3.2-1b", "seq_len": 64}, device
    for dtype in ("fp32", None, "bf16"):
        for precision in ("bf16-master", "bf16", "fp32"):
            zero = {"data_types": {"grad_accum_dtype": dtype}, "reduce_bucket_size": 12_000}
            for offload in ("optimizer", "none"):
                run = {**ZERO, "zero_stage": 2, "offload": offload, "precision": precision, "seq_len": 48}
                yield {**run, "grad_accum": 3, "zero": zero}, "H200"
    yield (
        {**ZERO, "zero_stage": 3, "offload": "all", "seq_len": 32, "zero": {"offload_param": {"pin_memory": False}}},
        "H200",
    )
    quarter_of_a_billion = shape(hidden_size=2000, vocab_size=125_000, intermediate_size=64)  # normed in one piece
    for ranks in (1, 2):
        run = {**ZERO, "zero_stage": 3, "offload": "optimizer", "model": quarter_of_a_billion, "seq_len": 4}
        yield {**run, "world_size": ranks, "zero": {"reduce_bucket_size": 1000}}, "cpu"
    for gpus in (1, 2, 4):
        run = {"model": "llama-3.1-8b", "zero_stage": 2, "offload": "optimizer", "world_size": gpus, "seq_len": 512}
        yield {**run, "checkpointing": "full", "zero": {"reduce_bucket_size": 10**7}}, "V100-32GB"
        yield {**run, "zero_stage": 3, "offload": "all", "checkpointing": "full"}, "V100-32GB"
        yield {**run, "precision": "bf16-master"}, "A100-80GB"


def refused_settings():
    """Settings that can't be, that DeepSpeed has elsewhere, or that aren't estimated."""
    whole = {"reduce_bucket_size": (0, -1, 1.5, "5e8", None, True, 2**62, 2**62 + 1, 1e6), "sub_group_size": (0, 1)}
    whole |= {"stage3_max_live_parameters": (-1, 0), "stage3_prefetch_bucket_size": (-1, 0)}
    whole |= {
        "gradient_clipping": (0, -1, 1.0, float("inf"), float("nan"), "1", True),
        "overlap_comm": (1, "true", None),
    }
    whole |= {"data_types": ("fp32", {"grad_accum_dtype": "fp7"}, {"other": 1}, {"grad_accum_dtype": "fp32"})}
    whole |= {"stage": (0,), "reduce_bucket_siz": (5,), "nothing_like_it": (1,), "offload_optimizer": (True, {})}
    for key, values in whole.items():
        for value in values:
            yield {**ZERO, "zero_stage": 3, "seq_len": 16, "zero": {key: value}}, "cpu"
            yield {**ZERO, "zero_stage": 2, "seq_len": 16, "zero": {key: value}, "offload": "optimizer"}, "H200"
    for offload in ("optimizer", "all"):
        for own in ({"device": "cpu"}, {"nvme_path": "/x"}, {"pin_memory": 1}, {"pin_memory": True}, {"ratio": 0.5}):
            for key in ("offload_optimizer", "offload_param"):
                yield {**ZERO, "zero_stage": 3, "seq_len": 16, "offload": offload, "zero": {key: own}}, "cpu"
    for stage in range(4):
        for offload in ("none", "optimizer", "all"):
            for precision in ("bf16-mixed", "bf16", "bf16-master"):
                for optimizer in ("adamw", "sgd", "adamw-loop", "adamw-8bit", "none"):
                    run = {**ZERO, "zero_stage": stage, "offload": offload, "precision": precision, "seq_len": 16}
                    yield {**run, "optimizer": optimizer}, "cpu"
    for changes in (LIGER, {"layer_kernels": "liger"}, {"loss_kernel": "liger"}, {"mode": "infer"}, {"padded": True}):
        for stage in (2, 3):
            yield {**ZERO, "zero_stage": stage, "seq_len": 16, **changes}, "H200"


def random_runs(count=80):
    """Fields drawn at random, so that what meets nowhere above meets here."""
    rng = random.Random(0)
    for _ in range(count):
        kv_heads = rng.choice([1, 2, 3])
        model = {
            "hidden_size": rng.choice([96, 192, 320]), "intermediate_size": rng.choice([130, 344, 900]),
            "num_hidden_layers": rng.choice([1, 2, 3]), "num_attention_heads": kv_heads * rng.choice([1, 2, 4]),
            "num_key_value_heads": kv_heads, "vocab_size": rng.choice([50, 1000, 5000]),
            "head_dim": rng.choice([16, 40, 64, 136]), "tie_word_embeddings": rng.random() < 0.4,
        }  # fmt: skip
        run = {
            "model": model, "seq_len": rng.choice([1, 17, 63, 130, 700]), "micro_batch": rng.choice([1, 1, 2, 3]),
            "grad_accum": rng.choice([1, 1, 2, 3]), "precision": rng.choice(PRECISIONS[:4]),
            "optimizer": rng.choice(OPTIMIZERS), "attention": rng.choice(ATTENTIONS), "padded": rng.random() < 0.2,
            "checkpointing": rng.choice(CHECKPOINTINGS), "layer_kernels": rng.choice(["torch", "torch", "liger"]),
            "loss_kernel": rng.choice(["torch", "torch", "liger"]),
        }  # fmt: skip
        yield run, rng.choice(["cpu", "H200", "H200", "T4"])


def runs():
    """Every pinned run, as plain data, with the device that is asked about."""
    yield from chain(
        plain_runs(), data_parallel_runs(), stage_3_runs(), offloaded_runs(), refused_settings(), random_runs()
    )


def answered(run, device):
    """What is pinned of an estimate; `run` has the small shape unless it says another."""
    answer = estimate(Run.parse({"model": SHAPE, **run}), device)
    parts = answer.parts and {part: nbytes for part, nbytes in answer.parts.items() if nbytes}
    return {
        "outcome": answer.outcome, "peak_bytes": answer.peak_bytes, "phase": answer.phase, "parts": parts,
        **answer.provenance,
    }  # fmt: skip


def lines():
    """Run, device and answer of each line of the file."""
    return [json.loads(line) for line in LINES.read_text("utf-8").splitlines()]


def main():
    pinned = [{"run": run, "device": device, "answer": answered(run, device)} for run, device in runs()]
    LINES.write_text("".join(json.dumps(line) + "\n" for line in pinned), "utf-8")
    print(f"{len(pinned)} answers pinned", file=sys.stderr)


if __name__ == "__main__":
    main()
