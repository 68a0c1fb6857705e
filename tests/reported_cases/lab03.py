"""Reported cases that Lab 03 answers, and the cells that show them live."""

# By number: the cell that answers, the name of its source there, and right figures.
ANSWERED = {
    "PF-052": ("wrong-equivalent", "unsloth.ai/blog/gradient", "transformers/pull/34191", "0.03", "0.0068"),
    "PF-054": ("wrong-one-family", "huggingface/transformers/issues/37197", "8 to 10", "stays about 1"),
    "PF-055": ("wrong-sum", "agokrani/distillKitPlus/issues/5", "26 / 6 = 4.3", "from 8 to 32, 4 times"),
    "PF-057": ("wrong-no-sync", "huggingface/transformers/pull/35157", "$k$ times that of DDP with `no_sync`"),
    "PF-058": ("wrong-curves", "huggingface/accelerate/issues/3877", "overlap within rounding", "unsolved"),
    "PF-060": ("wrong-no-time", "NVIDIA/cosmos-framework/issues/161", "110.2 s", "430.6 s", "9.3 and 9.5"),
}
# What a case is about and this machine can show, it shows.
SHOWN_LIVE = {
    "PF-052": "learn-exact",
    "PF-054": "layers-trainer-table",
    "PF-055": "layers-symptom-figure",
    "PF-058": "learn-curves",
}
