"""Reported cases that Lab 01 answers, by number: the cell, the name of its source there, and right figures."""

ANSWERED = {
    "PF-001": ("wrong-twice-the-weights", "huggingface/transformers", "14,949", "1,343", "7,275", "6,775"),
    "PF-002": ("wrong-forgot-logits", "stas00/ml-engineering", "31 GiB", "240 GiB", "28 hidden states"),
    "PF-007": ("wrong-four-times", "caomaolufei/AIInfraGuide/issues/24", "107 GB", "80.4"),
    "PF-008": ("wrong-always-twenty", "AI-Hypercomputer/maxtext/issues/606", "134 GB", "80.4 GB"),
    "PF-011": ("wrong-bf16-one-thing", "Lightning-AI/litgpt/pull/275", "33.51", "15.86", "22.35", "14.82"),
    "PF-013": ("wrong-foreach", "meta-pytorch/torchtune/pull/389", "13.5 GB", "54 GB", "40.5 GB", "27 GB"),
    "PF-015": ("wrong-first-step", "roboflow/rf-detr/pull/1342", "314.5", "703.8", "389.3", "128.4"),
    "PF-016": ("wrong-cast", "huggingface/transformers/pull/33902", "18.5 GiB", "10.6 GiB"),
    "PF-019": ("wrong-rows-differ", "meta-pytorch/torchtune/issues/794", "Compare rows only where"),
    "PF-020": ("wrong-packing", "pytorch/torchtune", "25.5", "60", "51.0", "42.9", "24.9", "17.6", "3.4 times"),
    "PF-023": ("wrong-lora-one-percent", "huggingface/peft", "32 GB", "14.4 GB", "47.14 GB"),
    "PF-025": ("wrong-table-is-enough", "hiyouga/LlamaFactory/issues/1158", "18 GB", "76 to 90 GB"),
    "PF-027": ("wrong-reserved", "pytorch/pytorch/issues/40989", "15,006", "16,726", "17,402", "19,354"),
    "PF-029": ("wrong-context", "stas00/ml-engineering", "0.47 GiB", "1.78 GiB", "0.55 GiB", "2.00 GiB"),
    "PF-032": ("wrong-half-free", "pytorch/pytorch/issues/35901", "11.64 GB", "0.50 GB", "11.6 GB"),
    "PF-034": ("wrong-no-sync", "TristanBilot/mlx-benchmark/pull/21", "0.03", "1.36", "0.59"),
    "PF-037": ("wrong-unknown", "huggingface/transformers/issues/32499", "saved-tensor hooks"),
}
# What a case is about and this machine can show, it shows: in this code cell.
SHOWN_LIVE = {
    "PF-001": "weight-count",
    "PF-002": "logits-bars",
    "PF-008": "recipe-bars",
    "PF-011": "recipe-bf16",
    "PF-013": "when-optimizer",
    "PF-015": "when-timeline",
    "PF-016": "logits-table",
    "PF-020": "growth-bars",
    "PF-027": "counters-8b",
    "PF-029": "counters-live",
    "PF-032": "counters-fragment",
    "PF-034": "wrong-no-sync-live",
    "PF-037": "saved-table",
}
