"""The DeepSpeed files in `data/`: what the labs use, Hugging Face's Trainer, accelerate and DeepSpeed all accept."""

import json

import pytest
import torch

from labs_utils.coverage import why_not_built
from labs_utils.device import DATA
from labs_utils.run import Run
from labs_utils.training.deepspeed_config import deepspeed_config
from labs_utils.zero_settings import config_file

FILES = sorted((DATA / "deepspeed").glob("*.json"))
COMBINATIONS = [(stage, offload) for stage in range(4) for offload in ("none", "optimizer", "all")]


@pytest.fixture
def as_deepspeed_reads_it(monkeypatch):
    """DeepSpeed's own reading of a configuration; it asks how many ranks there are."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    return DeepSpeedConfig


def zero_run(stage, offload="none", **changes):
    return Run.parse(
        {"engine": "deepspeed", "zero_stage": stage, "offload": offload, "precision": "bf16-master", **changes}
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_trainer_fills_every_auto_and_deepspeed_accepts_the_result(path, tmp_path, as_deepspeed_reads_it):
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    batches = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments(tmp_path, **batches, bf16=True, use_cpu=not torch.cuda.is_available())
    config = HfTrainerDeepSpeedConfig(str(path))
    config.trainer_config_process(arguments)
    assert "auto" not in json.dumps(config.config)
    read = as_deepspeed_reads_it(config.config)
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (3, 2)
    assert read.zero_optimization_stage == json.loads(path.read_text())["zero_optimization"]["stage"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_fills_every_auto(path):
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config=str(path), gradient_accumulation_steps=2, gradient_clipping=1.0)
    plugin.set_mixed_precision("bf16")
    batches = {"train_micro_batch_size_per_gpu": 3, "train_batch_size": 6, "gradient_clipping": 1.0}
    plugin.deepspeed_config_process(must_match=False, gradient_accumulation_steps=2, **batches)
    assert "auto" not in json.dumps(plugin.deepspeed_config)
    assert plugin.deepspeed_config["bf16"]["enabled"] is True


@pytest.mark.parametrize(("stage", "offload"), COMBINATIONS)
def test_every_combination_has_a_file_or_a_reason(stage, offload, as_deepspeed_reads_it):
    run = zero_run(stage, offload)
    assert config_file(run).exists() == (why_not_built(run) is None)
    if config_file(run).exists():
        config = as_deepspeed_reads_it(deepspeed_config(run, pin_memory=True))
        assert config.zero_optimization_stage == stage and config.bfloat16_config.enabled
        assert config.zero_config.offload_optimizer is None or config.zero_config.offload_optimizer.pin_memory


def test_a_runs_own_keys_win():
    config = deepspeed_config(zero_run(2, zero={"reduce_bucket_size": 1000}), pin_memory=False)
    assert config["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}


def test_keys_of_offload_are_merged_and_those_from_outside_zero_go_where_they_belong():
    own = {"offload_optimizer": {"ratio": 0.5}, "gradient_clipping": 1.0, "overlap_comm": True}
    config = deepspeed_config(zero_run(3, "optimizer", zero=own), pin_memory=True)
    offload = {"device": "cpu", "pin_memory": True, "ratio": 0.5}
    assert config["zero_optimization"] == {"stage": 3, "offload_optimizer": offload, "overlap_comm": True}
    assert config["gradient_clipping"] == 1.0


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_can_do_without_pinned_memory_but_a_cpu_has_none(asked):
    run = zero_run(2, "optimizer", zero={"offload_optimizer": {"pin_memory": asked}})
    for pins in (False, True):
        offload = deepspeed_config(run, pin_memory=pins)["zero_optimization"]["offload_optimizer"]
        assert offload["pin_memory"] is (asked and pins)


@pytest.mark.parametrize(
    ("offload", "zero", "words"),
    [
        ("optimizer", {"offload_optimizer": {"device": "nvme"}}, "the run's field 'offload' says"),
        ("optimizer", {"offload_optimizer": {"nvme_path": "/tmp"}}, "has no 'nvme_path' here"),
        ("optimizer", {"offload_optimizer": True}, "is a JSON object"),
        ("optimizer", {"offload_param": {"pin_memory": False}}, "offload is 'optimizer'"),
        ("none", {"offload_optimizer": {"pin_memory": False}}, "needs a run that offloads it"),
        ("optimizer", {"stage": 3}, "take 'zero_stage'"),
    ],
)
def test_keys_that_are_the_runs_own_are_refused(offload, zero, words):
    assert words in why_not_built(zero_run(3, offload, zero=zero))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "bf16-mixed"}, "take precision 'bf16-master'"),
        ({"precision": "bf16", "zero_stage": 0}, "at stage 0 take 'bf16-master'"),
        ({"engine": "ddp", "zero_stage": 0}, "is DeepSpeed's; with 'ddp'"),
        ({"engine": "ddp", "zero_stage": 0, "precision": "bf16", "zero": {"overlap_comm": True}}, "take engine"),
        ({"optimizer": "none"}, "'adamw' is"),
        ({"precision": "bf16", "offload": "optimizer", "optimizer": "sgd"}, "take optimizer 'adamw', not 'sgd'"),
        ({"precision": "bf16", "offload": "optimizer", "optimizer": "adamw-loop"}, "take optimizer 'adamw'"),
        ({"mode": "infer"}, "'train' is"),
    ],
)
def test_what_no_engine_does_has_a_reason(changes, words):
    assert words in why_not_built(zero_run(2, **changes))
