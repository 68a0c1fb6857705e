"""Runs that between them pass through every branch of the models, and what is pinned of their answers.

    python tests/answers/pinned_runs.py

makes `pinned.jsonl` again. Answers change on purpose only: for a change of a model, or of the recorded rates. Whoever
makes them again says in the commit which of them changed, and why.
"""

import gc
import json
from collections import Counter
from itertools import accumulate
from pathlib import Path

from labs_utils import Run, estimate, find_device, step_seconds
from labs_utils.answers import estimate_timeline, left_pinned_bytes, moved_bytes, offloaded_bytes

PINNED = Path(__file__).with_name("pinned.jsonl")

# No two sizes are equal: embedding and head 32,000 elements, q and o 4,096, k and v 2,048, MLP 11,072, a norm 64.
SMALL = {
    "hidden_size": 64, "intermediate_size": 173, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 500, "head_dim": 16,
}  # fmt: skip
EMBEDDING, QUERY, KEY, MLP, NORM = 32_000, 4096, 2048, 11_072, 64
BIG = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 1, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 32_000, "head_dim": 128,
}  # fmt: skip
ONE_LAYER = {**SMALL, "num_hidden_layers": 1}
UNGROUPED, TIED = {"num_key_value_heads": 4}, {"tie_word_embeddings": True}
ONE_HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1}
LIGER_LAYERS, LIGER_LOSS = {"layer_kernels": "liger"}, {"loss_kernel": "liger"}
MIXED = {"precision": "bf16-mixed"}
KEPT = ("keep-attention", "keep-matmul-attention")


def small(**changes):
    return {"model": SMALL, "seq_len": 48, **changes}


def shaped(shape, **changes):
    return {"model": {**SMALL, **shape}, "seq_len": 48, **changes}


def big(**changes):
    return {"model": BIG, "seq_len": 1024, **changes}


PLAIN = {
    "plain": small(),
    "two sequences": small(micro_batch=2),
    "one token": small(seq_len=1),
    "one token of two": small(seq_len=1, micro_batch=2),
    "padded": small(padded=True, micro_batch=2),
    "padded, one head": shaped(ONE_HEAD, padded=True),
    "padded, mixed": small(padded=True, **MIXED),
    "padded, ungrouped": shaped(UNGROUPED, padded=True),
    "padded, eager": small(padded=True, attention="eager"),
    "one head": shaped(ONE_HEAD),
    "one key/value head": shaped({"num_key_value_heads": 1}),
    "head_dim 40": shaped({"head_dim": 40}),
    "head_dim 200": shaped({"head_dim": 200}),
    "tied": shaped(TIED),
    "tied, mixed": shaped(TIED, **MIXED),
    "tied, liger loss": shaped(TIED, **LIGER_LOSS),
    "a layer": shaped({"num_hidden_layers": 1}),
    **{f"accumulated {count}": small(grad_accum=count) for count in (2, 3, 5)},
    **{precision: small(precision=precision) for precision in ("fp32", "bf16-mixed", "fp16-mixed")},
    **{f"optimizer {name}": small(optimizer=name)
       for name in ("adamw-foreach", "adamw-loop", "adamw-8bit", "sgd", "none")},
    "optimizer adamw-8bit at the block's size": shaped({"hidden_size": 4095, "vocab_size": 7}, optimizer="adamw-8bit"),
    "optimizer adamw-8bit above it": shaped({"hidden_size": 4097, "vocab_size": 7}, optimizer="adamw-8bit"),
    "optimizer adamw-loop, mixed": small(optimizer="adamw-loop", **MIXED),
}  # fmt: skip
ATTENTIONS = {
    f"{attention}{words}": {**run, "attention": attention}
    for attention in ("sdpa", "eager", "sdpa-math", "sdpa-efficient", "sdpa-cudnn", "flash_attention_2")
    for words, run in {
        ", two sequences": shaped(UNGROUPED, micro_batch=2),
        ", grouped": small(micro_batch=2),
        ", one key/value head": shaped({"num_key_value_heads": 1}, micro_batch=2),
        ", one head": shaped(ONE_HEAD, seq_len=33),
        ", mixed": small(**MIXED),
        ", one sequence": shaped(UNGROUPED, seq_len=130),
    }.items()
}
CHECKPOINTED = {
    f"{kind}{words}": {**run, "checkpointing": kind}
    for kind in ("full", "every-2", "every-3", *KEPT, "offload")
    for words, run in {
        "": shaped({"num_hidden_layers": 3}),
        ", mixed, accumulated": shaped(TIED, grad_accum=2, **MIXED),
        ", two sequences": small(micro_batch=2),
    }.items()
} | {
    "full, eager": small(checkpointing="full", attention="eager"),
    "full, padded": small(checkpointing="full", padded=True),
    "keep-matmul-attention, padded": small(checkpointing="keep-matmul-attention", padded=True),
    "offload, one head": shaped(ONE_HEAD, checkpointing="offload"),
    "offload, one token": small(checkpointing="offload", seq_len=1),
    "offload, eager": small(checkpointing="offload", attention="eager", micro_batch=2),
    "offload, eager, one key/value head": shaped(
        {"num_key_value_heads": 1}, checkpointing="offload", attention="eager", micro_batch=2
    ),
    "offload, math": small(checkpointing="offload", attention="sdpa-math", micro_batch=2),
    "offload, padded": small(checkpointing="offload", padded=True),
    "keep-attention, math": small(checkpointing="keep-attention", attention="sdpa-math"),
}
LIGER = {
    f"liger {words}": run
    for words, run in {
        "layers": small(**LIGER_LAYERS),
        "layers, mixed": small(**LIGER_LAYERS, **MIXED),
        "layers, full": small(**LIGER_LAYERS, checkpointing="full"),
        "loss": small(**LIGER_LOSS),
        "loss, mixed": small(**LIGER_LOSS, **MIXED),
        "loss, fp32": small(**LIGER_LOSS, precision="fp32"),
        "loss, in one chunk": shaped({"vocab_size": 60}, **LIGER_LOSS, **MIXED),
        "loss, in a chunk of a power of two": small(seq_len=512, **LIGER_LOSS, **MIXED),
        "both, big": big(**LIGER_LAYERS, **LIGER_LOSS),
    }.items()
}
# aten/native/cuda/Embedding.cu sorts the token ids of more than 3,072 tokens.
SORTED = {
    f"{tokens} tokens of {vocab_size} words": shaped({"vocab_size": vocab_size}, seq_len=tokens, checkpointing="full")
    for tokens in (3071, 3072, 3073)
    for vocab_size in (500, 5000)
} | {
    "3072 tokens of two sequences": small(seq_len=1536, micro_batch=2),
    "3074 tokens of two sequences": small(seq_len=1537, micro_batch=2),
}


def ranks(count=2, **changes):
    return small(**{"precision": "bf16-master", "world_size": count, "engine": "deepspeed", **changes})


def offloading(stage, count=2, keys=None, **changes):
    return zero(stage, count, keys, **{"model": ONE_LAYER, **changes})


def zero(stage, count=2, keys=None, **changes):
    return ranks(count, **{"zero_stage": stage, "zero": {"reduce_bucket_size": 50_000, **(keys or {})}, **changes})


def bucket(stage, size, **changes):
    return zero(stage, keys={"reduce_bucket_size": size}, **changes)


def stage_3(**keys):
    """Nothing is gathered ahead or kept, but for what `keys` say, in short names."""
    names = {
        "prefetch": "stage3_prefetch_bucket_size", "live": "stage3_max_live_parameters", "group": "sub_group_size",
        "reuse": "stage3_max_reuse_distance", "threshold": "stage3_param_persistence_threshold",
    }  # fmt: skip
    told = {"prefetch": 0, "reuse": 0, "threshold": 0, **keys}
    return {names.get(key, key): value for key, value in told.items()}


# 500,000,000 elements of gradients are sent at a time (engine.py, MEMORY_OPT_ALLREDUCE_SIZE).
HUGE = {**SMALL, "hidden_size": 5000}
DATA_PARALLEL = {
    **{f"ddp of {count}": ranks(count, engine="ddp", precision="bf16") for count in (1, 2, 8)},
    **{f"ddp, {precision}": ranks(engine="ddp", precision=precision, grad_accum=2)
       for precision in ("fp32", "bf16", "bf16-mixed", "fp16-mixed")},
    **{f"stage 0, {precision}": ranks(precision=precision, grad_accum=2)
       for precision in ("fp32", "bf16-master", "fp16-master")},
    **{f"stage 0 with a weight of {5000 * vocab}": ranks(model={**HUGE, "vocab_size": vocab}, seq_len=4)
       for vocab in (99_999, 100_000, 100_001)},
    **{f"{words} of 1.3 GB of weights": ranks(4, model={**BIG, "vocab_size": 160_000}, seq_len=16, **run)
       for words, run in {"ddp": {"engine": "ddp", "precision": "bf16"}, "stage 0": {}, "stage 1": {"zero_stage": 1},
                          "stage 3": {"zero_stage": 3}}.items()},
    "stage 0, tied": ranks(model={**SMALL, **TIED}),
    "stage 0, adamw-loop": ranks(optimizer="adamw-loop"),
    "stage 0, liger": ranks(**LIGER_LAYERS, **LIGER_LOSS),
}  # fmt: skip
ZERO_1_2 = {
    f"stage {stage}{words}": run
    for stage in (1, 2)
    for words, run in {
        **{f" of {count}": zero(stage, count) for count in (1, 2, 3, 4, 5, 8)},
        **{f" of 5, bucket {size}": zero(stage, 5, {"reduce_bucket_size": size}) for size in (1, 11_000)},
        # exactly a gradient, one less and more; the head and the norm after it; half an embedding
        **{f", bucket {size}": bucket(stage, size)
           for size in (1, NORM - 1, NORM, NORM + 1, KEY, QUERY, MLP - 1, MLP, MLP + 1,
                        EMBEDDING - 1, EMBEDDING, EMBEDDING + 1, EMBEDDING + NORM - 1, EMBEDDING + NORM,
                        EMBEDDING + NORM + 1, EMBEDDING + NORM + MLP)},
        ", default bucket": zero(stage, keys={"reduce_bucket_size": 500_000_000}, grad_accum=2),
        ", no keys": ranks(zero_stage=stage),
        ", overlapping": zero(stage, keys={"overlap_comm": True}, grad_accum=2),
        ", overlapping, small buckets": bucket(stage, 12_000, grad_accum=2) | {
            "zero": {"overlap_comm": True, "reduce_bucket_size": 12_000}},
        ", accumulated": zero(stage, grad_accum=3),
        ", tied": zero(stage, model={**SMALL, **TIED}, optimizer="sgd"),
        ", adamw-foreach": zero(stage, optimizer="adamw-foreach"),
        ", fp32": zero(stage, precision="fp32"),
        ", bf16": zero(stage, precision="bf16", grad_accum=2),
        ", fp16": zero(stage, precision="fp16-master"),
        ", checkpointed": zero(stage, checkpointing="full"),
        ", padded": zero(stage, padded=True),
    }.items()
}  # fmt: skip
STAGE_3 = {
    f"stage 3{words}": run
    for words, run in {
        **{f" of {count}": zero(3, count) for count in (1, 2, 3, 4)},
        **{f" of {count}, nothing kept": zero(3, count, stage_3()) for count in (1, 2, 3)},
        ", no keys": ranks(zero_stage=3),
        **{f", bucket {size}": zero(3, keys=stage_3(reduce_bucket_size=size))
           for size in (1, NORM, KEY, MLP - 1, MLP, MLP + 1, EMBEDDING - 1, EMBEDDING, EMBEDDING + 1,
                        EMBEDDING + NORM - 1, EMBEDDING + NORM, EMBEDDING + NORM + 1, EMBEDDING + NORM + MLP)},
        **{f", threshold {size}": zero(3, keys=stage_3(threshold=size))
           for size in (NORM - 1, NORM, NORM + 1, KEY - 1, KEY, EMBEDDING)},
        **{f", threshold {size}, of 1": zero(3, 1, keys=stage_3(threshold=size)) for size in (NORM - 1, NORM)},
        **{f", prefetch {size}": zero(3, keys=stage_3(prefetch=size))
           for size in (1, NORM, NORM + 1, QUERY, QUERY + 1, QUERY + KEY, QUERY + KEY + 1, 30_000)},
        **{f", prefetch {size}, checkpointed": zero(3, keys=stage_3(prefetch=size), checkpointing="full", grad_accum=2)
           for size in (1, QUERY, QUERY + 1, 30_000)},
        **{f", live {size}": zero(3, keys=stage_3(prefetch=60_000, live=size))
           for size in (0, NORM, QUERY, MLP, EMBEDDING, EMBEDDING + 1, 40_000)},
        **{f", reuse {size}": zero(3, keys=stage_3(reuse=size))
           for size in (1, NORM, NORM + 1, MLP, MLP + 1, EMBEDDING, EMBEDDING + NORM, EMBEDDING + NORM + 1,
                        74_752, 74_753, 10**6)},
        **{f", reuse {size}, ahead": zero(3, keys=stage_3(reuse=size, prefetch=20_000), checkpointing="full")
           for size in (MLP, MLP + 1, 2 * MLP, 2 * MLP + 1, 60_000)},
        # a rank's parts of the first weights: 16,000 of the embedding, 2,048 of q, 1,024 of k
        **{f", sub-groups of {size}": zero(3, keys=stage_3(group=size))
           for size in (1, 15_999, 16_000, 16_001, 18_048, 18_049, 10**6)},
        # DeepSpeed's own limits: 100,000 stay, 50,000,000 are gathered ahead, 1,000,000,000 kept and in a sub-group
        **{f" of {count}, an embedding of {hidden * vocab}": ranks(
               count, model={**ONE_LAYER, "hidden_size": hidden, "vocab_size": vocab}, seq_len=4, zero_stage=3)
           for hidden, vocab in ((100, 1000), (100, 1001), (5000, 10_000), (5000, 10_001), (5000, 199_999),
                                 (5000, 200_000), (5000, 200_001))
           for count in (1, 2)},
        ", overlapping": zero(3, keys={"overlap_comm": False}, grad_accum=2),
        ", tied": zero(3, keys=stage_3(), model={**SMALL, **TIED}),
        ", tied, kept": zero(3, keys=stage_3(reuse=50_000, prefetch=10_000), model={**SMALL, **TIED}),
        ", fp32": zero(3, keys=stage_3(), precision="fp32"),
        ", bf16": zero(3, keys=stage_3(), precision="bf16"),
        ", fp16": zero(3, keys=stage_3(), precision="fp16-master"),
        ", every-2": zero(3, keys=stage_3(prefetch=5000), checkpointing="every-2"),
        ", keep-attention": zero(3, keys=stage_3(prefetch=5000), checkpointing="keep-attention"),
        ", offload": zero(3, keys=stage_3(), checkpointing="offload"),
        ", eager": zero(3, keys=stage_3(), attention="eager", optimizer="adamw-loop"),
        ", padded, of 3": zero(3, 3, stage_3(prefetch=5000), padded=True, optimizer="sgd"),
        ", odd sizes, of 7": zero(3, 7, stage_3(prefetch=5000)),
    }.items()
}  # fmt: skip
WIDE = {"data_types": {"grad_accum_dtype": "fp32"}}
OFFLOADED = {
    f"stage {stage}, {offload} offloaded{words}": {**run, "offload": offload}
    for stage, offload in ((1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "all"))
    for words, run in {
        "": offloading(stage, keys=stage_3()),
        " of 1": offloading(stage, 1, stage_3(), grad_accum=2),
        " of 3": offloading(stage, 3, stage_3(prefetch=5000), grad_accum=3),
        ", no keys": ranks(zero_stage=stage, model=ONE_LAYER),
        ", all defaults": offloading(stage, keys={"reduce_bucket_size": EMBEDDING}),
        ", nothing pinned": offloading(stage, keys=stage_3(offload_optimizer={"pin_memory": False})),
        ", pinned": offloading(stage, keys=stage_3(offload_optimizer={"pin_memory": True}), grad_accum=2),
        ", clipped": offloading(stage, keys=stage_3(gradient_clipping=1.0, reduce_bucket_size=EMBEDDING - 1)),
        ", fp32": offloading(stage, keys=stage_3(), precision="fp32", grad_accum=2),
        ", bf16": offloading(stage, keys=stage_3(), precision="bf16", grad_accum=2),
        ", fp16": offloading(stage, keys=stage_3(), precision="fp16-master"),
        ", sgd": offloading(stage, keys=stage_3(), optimizer="sgd"),
        ", tied, checkpointed": offloading(stage, keys=stage_3(reuse=40_000, threshold=NORM), checkpointing="full",
                                           model={**ONE_LAYER, **TIED}),
        ", small buckets": offloading(stage, keys=stage_3(reduce_bucket_size=MLP, group=10_000)),
        ", overlapping": offloading(stage, keys={"overlap_comm": True, "reduce_bucket_size": MLP - 1}, grad_accum=2),
    }.items()
} | {
    f"stage 2, accumulated in {kind}, {precision}{words}": offloading(
        2, keys={"data_types": {"grad_accum_dtype": kind}, "reduce_bucket_size": size},
        precision=precision, grad_accum=3, offload="optimizer")
    for kind in ("fp32", None)
    for precision in ("bf16-master", "bf16", "fp32")
    for words, size in {"": 50_000, ", small buckets": MLP}.items()
} | {
    "stage 3, parameters not pinned": offloading(3, keys=stage_3(offload_param={"pin_memory": False}), offload="all"),
    "stage 3, parameters pinned": offloading(3, keys=stage_3(offload_param={"pin_memory": True}), offload="all"),
    **{f"stage 3, offloaded, sub-groups of {size}": offloading(3, keys=stage_3(group=size), offload="optimizer")
       for size in (1000, 20_000, 71_264, 71_265)},
    # the norm is taken of 250,000,000 elements at a time (stage3.py, `_constant_buffered_norm2`)
    **{f"stage 3, norms of {5000 * vocab}": ranks(
           1, zero_stage=3, offload="optimizer", seq_len=4,
           model={**ONE_LAYER, "hidden_size": 5000, "vocab_size": vocab})
       for vocab in (49_999, 50_002)},
}  # fmt: skip
# Large enough for the GPU to be busy; the seconds are what is pinned here.
TIMED = {
    "big": big(),
    "big, two sequences": big(micro_batch=2, seq_len=4096),
    "big, accumulated": big(grad_accum=4),
    "big, fp32": big(precision="fp32"),
    "big, mixed": big(**MIXED),
    "big, fp16": big(precision="fp16-mixed", grad_accum=2),
    "big, eager": big(attention="eager"),
    "big, math": big(attention="sdpa-math"),
    "big, padded": big(padded=True),
    "big, cudnn": big(attention="sdpa-cudnn"),
    "big, efficient": {**big(attention="sdpa-efficient"), "model": {**BIG, "num_key_value_heads": 16}},
    "big, head_dim 64": {**big(), "model": {**BIG, "head_dim": 64}},
    "big, head_dim 96": {**big(), "model": {**BIG, "head_dim": 96}},
    "big, head_dim 256": {**big(), "model": {**BIG, "head_dim": 256}},
    **{f"big, {kind}": big(checkpointing=kind, grad_accum=2) for kind in ("full", *KEPT, "offload")},
    "big, every-2": {**big(checkpointing="every-2"), "model": {**BIG, "num_hidden_layers": 3}},
    **{f"big, {name}": big(optimizer=name) for name in ("adamw-foreach", "adamw-loop", "adamw-8bit", "sgd", "none")},
    **{f"big, ddp of {count}": big(engine="ddp", world_size=count, grad_accum=2) for count in (1, 2, 8)},
    **{f"big, stage {stage} of {count}": big(engine="deepspeed", zero_stage=stage, world_size=count, grad_accum=2,
                                             precision="bf16-master", checkpointing="full")
       for stage in range(4) for count in (1, 2, 4)},
    **{f"big, stage {stage}, small pieces": big(
            zero_stage=stage, world_size=2, precision="fp16-master",
            zero={"reduce_bucket_size": 10**6, "overlap_comm": True})
       for stage in (1, 2)},
    "big, stage 3, small pieces": big(
        zero_stage=3, world_size=4, precision="bf16",
        zero={"reduce_bucket_size": 10**6, "overlap_comm": False, "stage3_prefetch_bucket_size": 1000,
              "stage3_max_reuse_distance": 10**6}),
    "big, stage 3, kept": big(
        zero_stage=3, world_size=2, precision="fp32", zero={"stage3_max_reuse_distance": 176_166_912}),
    "big, stage 3, almost kept": big(
        zero_stage=3, world_size=2, precision="fp32", zero={"stage3_max_reuse_distance": 176_166_911}),
    **{f"big, stage {stage}, {offload} offloaded, {precision}{words}": big(
            zero_stage=stage, world_size=count, precision=precision, offload=offload, grad_accum=2,
            zero={"gradient_clipping": clipping} if clipping is not None else {})
       for stage, offload in ((2, "optimizer"), (3, "optimizer"), (3, "all"))
       for precision in ("bf16-master", "bf16", "fp32")
       for words, count, clipping in (("", 1, None), (", clipped", 2, 1.0), (", not clipped", 4, 0))},
    "big, stage 3, all offloaded, not kept": big(
        zero_stage=3, world_size=2, precision="bf16-master", offload="all", zero={"stage3_max_reuse_distance": 0}),
}  # fmt: skip
REFUSED = {
    "infer": small(mode="infer"),
    "quantized": small(weights="int8"),
    "lora": small(lora_rank=8),
    "compiled": small(compile=True),
    "infer with ranks": zero(1, mode="infer"),
    "ranks without engine": small(world_size=2),
    "offload without engine": small(offload="optimizer"),
    "zero without engine": small(zero={"reduce_bucket_size": 10}),
    "master without engine": small(precision="bf16-master"),
    "ddp, master": ranks(engine="ddp"),
    "ddp, offload": ranks(engine="ddp", precision="bf16", offload="all"),
    "ddp, zero": ranks(engine="ddp", precision="bf16", zero={"reduce_bucket_size": 10}),
    "deepspeed, mixed": zero(1, **MIXED),
    "deepspeed, bf16 at stage 0": ranks(precision="bf16"),
    "deepspeed, none": zero(1, optimizer="none"),
    "deepspeed, 8 bits": zero(1, optimizer="adamw-8bit"),
    "offload, bf16, sgd": zero(2, precision="bf16", offload="optimizer", optimizer="sgd"),
    "offload, foreach": zero(2, offload="optimizer", optimizer="adamw-foreach"),
    "offload at stage 0": ranks(offload="optimizer"),
    "parameters offloaded at stage 2": zero(2, offload="all"),
    "own field": zero(1, keys={"stage": 2}),
    "liger layers at stage 3": zero(3, **LIGER_LAYERS),
    "liger loss at stage 3": zero(3, **LIGER_LOSS),
    "unknown key": zero(1, keys={"round_robin_gradients": True}),
    "misspelt key": zero(1, keys={"overlap_com": True}),
    "types without offload": zero(2, keys=WIDE),
    "types at stage 1": zero(1, keys=WIDE, offload="optimizer"),
    "types in bf16": zero(2, keys={"data_types": {"grad_accum_dtype": "bf16"}}, offload="optimizer"),
    "ratio": zero(3, keys={"offload_optimizer": {"ratio": 0.5}}, offload="optimizer"),
    "buffers": zero(3, keys={"offload_param": {"buffer_count": 5}}, offload="all"),
    "offload key that is no object": zero(2, keys={"offload_optimizer": True}, offload="optimizer"),
    "offload key with a device": zero(2, keys={"offload_optimizer": {"device": "cpu"}}, offload="optimizer"),
    "offload key with a path": zero(3, keys={"offload_param": {"nvme_path": "/x"}}, offload="all"),
    "offload key without offload": zero(2, keys={"offload_optimizer": {}}),
    "parameters' key, optimizer offloaded": zero(3, keys={"offload_param": {}}, offload="optimizer"),
    "pins that are no truth": zero(2, keys={"offload_optimizer": {"pin_memory": 1}}, offload="optimizer"),
    **{f"types {value}": zero(2, keys={"data_types": value}, offload="optimizer")
       for value in ("fp32", {}, {"grad_accum_dtype": "fp7"}, {"grad_accum_dtype": "fp32", "other": 1})},
    **{f"clipping {value}": zero(1, keys={"gradient_clipping": value})
       for value in (0, 1.0, -1, "1", True, None, float("inf"), float("nan"))},
    **{f"overlap {value}": zero(1, keys={"overlap_comm": value}) for value in (1, "true", None)},
    **{f"bucket {value}": bucket(1, value) for value in (0, 1.0, 1.5, "1", True, 2**62, 2**62 + 1)},
    **{f"{key} {value}": zero(3, keys={key: value})
       for key, least in {"allgather_bucket_size": 1, "sub_group_size": 1, "stage3_prefetch_bucket_size": 0,
                          "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
                          "stage3_param_persistence_threshold": 0}.items()
       for value in (least, least - 1)},
    "eager keeps nothing": small(checkpointing="keep-attention", attention="eager"),
    "math keeps nothing": small(checkpointing="keep-matmul-attention", attention="sdpa-math"),
    **{f"padded {attention}": small(padded=True, attention=attention)
       for attention in ("flash_attention_2", "sdpa-cudnn", "sdpa-math", "sdpa-efficient")},
    "padded and offloaded": small(padded=True, checkpointing="offload"),
    **{f"fp32 {attention}": small(precision="fp32", attention=attention)
       for attention in ("flash_attention_2", "sdpa-cudnn", "sdpa-efficient")},
    **{f"head_dim {size}": shaped({"head_dim": size, **UNGROUPED}) for size in (256, 258)},
    "head_dim 258, eager": shaped({"head_dim": 258}, attention="eager"),
    "head_dim 258, math": shaped({"head_dim": 258}, attention="sdpa-math"),
    "ddp, padded, flash": ranks(engine="ddp", precision="bf16", padded=True, attention="flash_attention_2"),
    "grouped, efficient": small(attention="sdpa-efficient"),
}  # fmt: skip

HALF = {"precision": "fp16-mixed"}
OTHER_GPUS = {
    "fp32, T4": ("T4", shaped(UNGROUPED, precision="fp32")),
    **{f"half, {device}": (device, shaped(UNGROUPED, **HALF)) for device in ("T4", "V100-32GB", "A100-80GB")},
    **{f"big in halves, {device}": (device, big(**HALF)) for device in ("T4", "V100-32GB", "A100-80GB", "H100")},
    "big in bf16, V100-32GB": ("V100-32GB", big(attention="eager")),
    "grouped, V100-32GB": ("V100-32GB", small(**HALF)),
    "grouped and padded, V100-32GB": ("V100-32GB", small(padded=True, seq_len=70, **HALF)),
    "liger, A100-80GB": ("A100-80GB", small(**LIGER_LAYERS, **LIGER_LOSS)),
    "flash, V100-32GB": ("V100-32GB", small(attention="flash_attention_2")),
    "cudnn, T4": ("T4", small(attention="sdpa-cudnn")),
    "eager, T4": ("T4", small(attention="eager")),
    "flash, A100-80GB": ("A100-80GB", small(attention="flash_attention_2")),
    "padded and offloaded, H200": ("H200", small(padded=True, checkpointing="offload")),
    **{f"stage {stage}, V100-32GB": ("V100-32GB", big(zero_stage=stage, world_size=4, precision="fp16-master"))
       for stage in (1, 2, 3)},
    **{f"stage {stage}, T4": ("T4", big(zero_stage=stage, world_size=2, precision="fp16-master")) for stage in (2, 3)},
    **{f"offloaded at stage {stage}, V100-32GB": (
        "V100-32GB", big(zero_stage=stage, world_size=2, precision="fp16-master", offload="optimizer"))
       for stage in (2, 3)},
    "no data sheet": (["H200", {"name": "unknown", "hbm_bytes_per_s": None}], small()),
    "no link": (["H200", {"name": "unlinked", "link_bytes_per_s": None}], big(engine="ddp", world_size=2)),
    "no memory known": (["H200", {"memory_bytes": None}], small()),
}  # fmt: skip
# CUDA's context takes 750 MiB of a GPU; of the rest `big` reserves 1652 MiB, `small` 66.
MIB = 2**20


def with_memory(nbytes, run):
    return ["H200", {"memory_bytes": nbytes}], run


FLAT_BYTES = 2 * 2 * 155_328  # 16-bit weights of SMALL, and beside them the same laid end to end
LITTLE_MEMORY = {
    **{f"big in {mib} MiB": with_memory((750 + mib) * MIB, big()) for mib in (1653, 1652, 1651, 1586, 1585, 1500)},
    **{f"padded in {mib} MiB": with_memory((750 + mib) * MIB, small(padded=True, seq_len=700, micro_batch=3))
       for mib in (125, 124, 123, 118, 110, 102, 96)},
    **{f"checkpointed in {mib} MiB": with_memory((750 + mib) * MIB, big(checkpointing="full", seq_len=3000))
       for mib in (2950, 2949, 2500)},
    "small in as much as it reserves": with_memory(816 * MIB, small()),
    "small in one byte less": with_memory(816 * MIB - 1, small()),
    "big in as much as its peak": with_memory(1_634_343_936, big()),
    "big in one byte less than its peak": with_memory(1_634_343_935, big()),
    "on a CPU with too little": (["cpu", {"memory_bytes": 10**6}], small()),
    "on a CPU with enough": (["cpu", {"memory_bytes": 10**9}], small()),
    **{f"stage {stage} in 750 MiB and {more} bytes more than its copy": with_memory(750 * MIB + FLAT_BYTES + more,
                                                                                   zero(stage))
       for stage in (1, 2) for more in (-1, 0)},
    **{f"offloaded in {mib} MiB, of {count}": with_memory((750 + mib) * MIB, big(
            zero_stage=2, world_size=count, precision="bf16", offload="optimizer", seq_len=16,
            zero={"reduce_bucket_size": 50_000}))
       for count, mib in ((1, 1518), (1, 1432), (1, 1431), (2, 1476), (2, 1475))},
}  # fmt: skip


def cases():
    """(name, device as `device_of` takes it, the run's fields)."""
    for group in (PLAIN, OFFLOADED):
        yield from ((f"{name}, {device}", device, run) for name, run in group.items() for device in ("cpu", "H200"))
    for group in (ATTENTIONS, LIGER, SORTED, TIMED, DATA_PARALLEL):
        yield from ((f"{name}, H200", "H200", run) for name, run in group.items())
    for group in (CHECKPOINTED, ZERO_1_2, STAGE_3, REFUSED):
        yield from ((f"{name}, cpu", "cpu", run) for name, run in group.items())
    for group in (OTHER_GPUS, LITTLE_MEMORY):
        yield from ((name, device, run) for name, (device, run) in group.items())


def device_of(told):
    """A device by its name, or by its name and what is different: ["H200", {"memory_bytes": 10}]."""
    if isinstance(told, str):
        return find_device(told)
    return find_device(told[0]).model_copy(update=told[1])


def observed(fields, device):
    """What is pinned of an answer: what `estimate` says, the bytes that appear, and what offload takes."""
    run, device = Run.parse(fields), device_of(device)
    answer = estimate(run, device)
    told = {name: getattr(answer, name) for name in ("outcome", "peak_bytes", "phase", "parts")} | answer.provenance
    told = {name: values(value) for name, value in told.items() if value is not None}
    if answer.outcome != "unsupported":
        told["appeared"] = appeared(timeline_of(run, device))
    if answer.outcome != "unsupported" and run.offload != "none":
        told |= of_offload(run, device)
    return told


def timeline_of(run, device):
    gc.disable()  # as `estimate` does, for speed
    try:
        return estimate_timeline(run, device)
    finally:
        gc.enable()


def values(told):
    """Of a mapping by part, phase or term the values alone: their order is always the same."""
    return list(told.values()) if isinstance(told, dict) else told


def appeared(timeline):
    """Bytes that appear in each phase and of each part, and live bytes summed over all events, which tells when.

    What goes after the step goes whenever Python collects it.
    """
    events, on_host = (
        [event for event in events if event.phase != "after"] for events in (timeline.events, timeline.host_events)
    )
    phases, parts = Counter(), Counter()
    for event in events:
        phases[event.phase] += max(0, event.change_bytes)
        parts[str(timeline.part_of.get(event.storage))] += max(0, event.change_bytes)
    sums = [sum(accumulate(event.change_bytes for event in each)) for each in (events, on_host)]
    pageable = sum(max(0, event.change_bytes) for event in on_host if event.storage in timeline.pageable)
    return [*phases.values(), *(parts[part] for part in sorted(parts)), *sums, pageable]


def of_offload(run, device):
    seconds = step_seconds(run, device, threads=8)
    return {
        "offloaded_bytes": [offloaded_bytes(run, pins) for pins in (True, False)],
        "left_pinned_bytes": left_pinned_bytes(run),
        "moved_bytes": [round(each) for each in moved_bytes(run).values()],
        "seconds_with_8_threads": seconds and sum(seconds.values()),
    }


def pinned():
    """{name: what was observed} as it was pinned."""
    lines = map(json.loads, PINNED.read_text("utf-8").splitlines())
    return {line.pop("name"): line for line in lines}


def main():
    before = pinned() if PINNED.exists() else {}
    after = {name: json.loads(json.dumps(observed(run, device))) for name, device, run in cases()}
    lines = [
        json.dumps({"name": name, **told}, separators=(",", ":"), ensure_ascii=False) for name, told in after.items()
    ]
    PINNED.write_text("\n".join(lines) + "\n", "utf-8")
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    print("\n".join([*changed, f"{len(changed)} of {len(after)} answers changed"]))


if __name__ == "__main__":
    main()
