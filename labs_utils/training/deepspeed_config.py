"""`deepspeed_config`: DeepSpeed's settings for a run, from the files in `data/deepspeed/`."""

from __future__ import annotations

import json

from labs_utils.run import Run
from labs_utils.zero_settings import OFFLOADS, OUTSIDE, config_file


def deepspeed_config(run: Run, pin_memory: bool) -> dict:
    """The run's file with every "auto" filled in and the run's own `zero` keys on top, for `deepspeed.initialize`.

    No clipping, if the run asks for none: then a step is plain PyTorch's. `pin_memory` is for GPUs; on a CPU DeepSpeed
    would compile an operator.
    """
    config = json.loads(config_file(run).read_text("utf-8"))
    config |= {
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.grad_accum,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
    }
    for name in ("bf16", "fp16"):
        config[name]["enabled"] = run.precision == f"{name}-master"
    if run.precision == "bf16":
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    zero = config["zero_optimization"]
    own = dict(run.zero)
    for offload in OFFLOADS:
        if offload in zero:
            zero[offload] |= {"pin_memory": pin_memory, **own.pop(offload, {})}
            zero[offload]["pin_memory"] &= pin_memory
    outside = {key: own.pop(key) for key in OUTSIDE if key in own}
    return config | outside | {"zero_optimization": {**zero, **own}}
