"""Reported cases that Lab 00 answers, by number: the cell, the name of its source there, and right figures."""

ANSWERED = {
    "PF-034": ("wait-recorded", "TristanBilot/mlx-benchmark/pull/21", "1.36", "1.01", "1.29", "0.90", "0.59"),
    "PF-135": ("wrong-oom-forever", "pytorch/pytorch/issues/27600", "sys.last_value", "empty_cache"),
    "PF-137": ("wrong-fork", "huggingface/accelerate/issues/1751", "torchrun"),
    "PF-139": ("wrong-spawn", "pytorch/pytorch/issues/20375", "torchrun"),
    "PF-142": ("wrong-bf16-t4", "unslothai/unsloth/issues/2783", "8.0", "fp16"),
    "PF-143": ("wrong-same-notebook", "googlecolab/colabtools/issues/4796", "versions"),
    "PF-145": ("wrong-colab-files", "instructlab/instructlab/issues/199", "--resume"),
}
SHOWN_LIVE = {"PF-034": "wait-live"}
