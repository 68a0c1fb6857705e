"""Reported cases that Lab 05 answers, and the cells that show them live."""

# By number: the cell that answers, the name of its source there, and right figures.
ANSWERED = {
    "PF-077": ("wrong-ten-times", "deepspeed.ai", "13 billion", "25.7 s", "6.1", "11.8", "7.6 s", "32,290 MiB"),
    "PF-080": ("wrong-slow-adam", "issues/1635", "pull/1637", "0.38 s", "0.86 s", "22.88 s", "28 bytes", "0.8 s"),
    "PF-082": ("wrong-fourteen-times", "deepspeed-zenflow", "0.5 s", "7 s", "4 s", "60 %", "40 GB", "32 GB/s"),
    "PF-085": ("wrong-swap", "textgen/issues/969", "OpenRLHF/issues/632", "4 bytes per parameter", "about 6", "2 more"),
    "PF-086": ("wrong-ds-opt-adam", "issues/1846", "issues/1077", "issues/5677", "ds_report", "torch.version.cuda"),
    "PF-087": ("wrong-nvme", "DeepSpeed/issues/998", "issues/2034", "12 bytes", "168 GB", "3 GB/s", "56 s"),
    "PF-090": ("wrong-pin", "stas00/ml-engineering", "0.459 s", "0.522", "0.646", "0.658"),
    "PF-092": ("wrong-host-33b", "DeepSpeed/issues/3448", "Coder/issues/78", "585 GB", "878 GB", "750 to 800 GB"),
}  # fmt: skip
# What a case is about and this machine can show, it shows.
SHOWN_LIVE = {
    "PF-077": "where-table",
    "PF-080": "adam-table",
    "PF-085": "host-table",
    "PF-087": "nvme-table",
    "PF-092": "host-refused",
}
