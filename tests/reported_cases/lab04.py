"""Reported cases that Lab 04 answers, and the cells that show them live."""

# By number: the cell that answers, the name of its source there, and right figures.
ANSWERED = {
    "PF-062": (
        "wrong-estimator",
        "deepspeedai/DeepSpeed/issues/4527",
        "14,678 MiB",
        "19,890",
        "21,272",
        "(4 \\cdot 131 \\cdot 10^6 + 18 \\cdot 6805 \\cdot 10^6 / 4) / 2^{30}",
    ),
    "PF-065": ("wrong-stage-2-larger", "DeepSpeedExamples/issues/123", "8,900 MB", "9,600 MB", "0.5 GB", "1 GB"),
    "PF-067": ("wrong-fsdp-smaller", "DeepSpeed/issues/3901", "13.4 GiB", "2.93 s", "23.8 GB", "2.86 s", "13.70 s"),
    "PF-068": ("wrong-more-nodes", "DeepSpeed/issues/2899", "55.83 GB", "76.68 GiB of 79.17 GiB", "896 MiB"),
    "PF-070": ("wrong-host-memory", "DeepSpeed/issues/5290", "4 × 140 GB = 560 GB"),
    "PF-071": (
        "wrong-generate",
        "transformers/issues/18281",
        "DeepSpeedExamples/issues/764",
        "trl/issues/3858",
        "700 ms",
        "14 GB",
        "synced_gpus",
    ),
    "PF-073": ("wrong-one-gpu", "DeepSpeed/issues/4953", "7.24 billion", "116 GB", "58 GB"),
    "PF-075": ("wrong-other-stack", "transformers/issues/30629", "0.25 GiB", "0.5 in fp32", "open example"),
}
# What a case is about and this machine can show, it shows.
SHOWN_LIVE = {
    "PF-062": "peak-table",
    "PF-065": "buckets-compare",
    "PF-067": "reuse-table",
    "PF-068": "chart-parts",
    "PF-073": "ranks-table",
}
