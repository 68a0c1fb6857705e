"""Mutants of solutions that nobody could tell from the solution, each with the reason: {exercise: {change: reason}}."""

THE_SAME_LARGEST = "the largest of two numbers, in the other order"
A_BYTE = "a byte in millions, within the tolerance that flags and norms need"
A_PERCENT = "less than the percent that the question allows"
ON_A_CPU = "the judge's machine is a CPU"
FREE = "the first of all policies, whether it costs nothing or less"
NEVER_BOTH = "what fits every-2 fits keep-attention, so full is compared with nothing that costs as much"
COMMON_FACTOR = "a factor of all that is compared"
ALIKE = "all runs are alike in this"
UNUSED = "the solution doesn't ask for it"
NOT_ON_A_PEAK = "no limit lies on an estimated peak: a tracked one has a few bytes more"
SOONER = "the search only begins elsewhere, or takes other steps"
ALL_HIGHER = "every size of segments has as many bytes more, so the lowest is the same"
AS_THE_WHOLE = "a segment of more layers than there are is one of all"
AS_FEW_ROWS = "so many rows take hardly more memory than those that are asked for, and give the same sum"

EQUAL: dict[str, dict[str, str]] = {
    "lab01.chunked_loss": {"chunk_tokens = 49": AS_FEW_ROWS},
    "lab01.peak": {
        "line 10: 0 -> (1)": A_BYTE,
        "line 10: 0 -> (-1)": A_BYTE,
        "line 11: 2 * hidden -> (hidden)": A_PERCENT,
        "line 11: 2 -> (1)": A_PERCENT,
        "line 11: 2 -> (3)": A_PERCENT,
        "line 19: max(layer(layers), layer(1)) -> (max(layer(1), layer(layers)))": THE_SAME_LARGEST,
        "run['num_attention_heads'] = 4": UNUSED,
        "run['num_attention_heads'] = 8": UNUSED,
        "run['num_key_value_heads'] = 2": UNUSED,
        "run['num_key_value_heads'] = 4": UNUSED,
        "run['head_dim'] = 128": UNUSED,
    },
    "lab02.cheapest_policy": {
        "line 13: 0 -> (-1)": FREE,
        "line 14: 0 -> (1)": FREE,
        "line 17: products + attention -> (products)": NEVER_BOTH,
        'line 19: estimate(Run.parse({**run, "checkpointing": policy}), "cpu") -> '
        "(estimate(Run.parse({**run, 'checkpointing': policy})))": ON_A_CPU,
        "line 20: peaks[policy] <= limit_bytes -> (peaks[policy] < limit_bytes)": NOT_ON_A_PEAK,
        "line 7: 'micro_batch' -> 'seq_len'": COMMON_FACTOR,
        "line 7: 'seq_len' -> 'micro_batch'": COMMON_FACTOR,
        'line 7: run["micro_batch"] * run["seq_len"] -> (run[\'micro_batch\'])': COMMON_FACTOR,
        'line 7: run["micro_batch"] * run["seq_len"] -> (run[\'seq_len\'])': COMMON_FACTOR,
        "run['attention'] = 'sdpa'": ALIKE,
        "run['checkpointing'] = 'none'": ALIKE,
        "run['compile'] = False": ALIKE,
        "run['engine'] = 'torch'": ALIKE,
        "run['grad_accum'] = 1": ALIKE,
        "run['kv_len'] = 0": ALIKE,
        "run['layer_kernels'] = 'torch'": ALIKE,
        "run['lora_rank'] = 0": ALIKE,
        "run['loss_kernel'] = 'torch'": ALIKE,
        "run['mode'] = 'train'": ALIKE,
        "run['offload'] = 'none'": ALIKE,
        "run['optimizer'] = 'sgd'": ALIKE,
        "run['padded'] = False": ALIKE,
        "run['precision'] = 'bf16'": ALIKE,
        "run['weights'] = 'plain'": ALIKE,
        "run['world_size'] = 1": ALIKE,
        "run['zero_stage'] = 0": ALIKE,
    },
    "lab02.segment_layers": {
        "line 6: min(each, layers - start) -> (min(layers - start, each))": "the smaller of two, in the other order",
        "line 7: 1 -> (0)": ALL_HIGHER,
        "line 7: 1 -> (2)": ALL_HIGHER,
        "line 7: enumerate(sizes, start=1) -> (enumerate(sizes))": ALL_HIGHER,
        "line 9: 1 -> (2)": AS_THE_WHOLE,
    },
    "lab03.largest_micro_batch": {
        "line 7: 1 -> (2)": SOONER,
        "line 9: 2 -> (3)": SOONER,
        "line 9: 2 -> (4)": SOONER,
    },
    "lab03.micro_step_peaks": {
        "line 8: 0 -> (-1)": A_BYTE,
        "line 8: 0 -> (1)": A_BYTE,
        "line 10: 0 -> (-1)": A_BYTE,
        "line 10: 0 -> (1)": A_BYTE,
        "line 10: max(0, made - before) -> (max(made - before, 0))": THE_SAME_LARGEST,
        "line 11: max(later, others + gradients[-1] + anew) -> (max(others + gradients[-1] + anew, later))": (
            THE_SAME_LARGEST
        ),
        "line 7: zip(rest, gradients, strict=True) -> (zip(gradients, rest, strict=True))": "a sum in the other order",
    },
    "lab04.step_traffic": {"line 10: 0 -> (1)": A_BYTE, "line 10: 0 -> (-1)": A_BYTE},
    "lab04.lowest_stage": {
        "line 8: each * parameters + other_bytes <= memory_bytes -> (each * parameters + other_bytes < memory_bytes)": (
            "a card that is full to the byte isn't asked: Adam's step counters come on top"
        ),
    },
    "lab05.offload_traffic": {"line 8: max(0, on_host - 1) -> (max(on_host - 1, 0))": THE_SAME_LARGEST},
    "lab05.offloaded_seconds": {"line 9: max(sent, made) -> (max(made, sent))": THE_SAME_LARGEST},
}
