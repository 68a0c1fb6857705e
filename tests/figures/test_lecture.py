"""What the lecture said: each figure of Labs 00, 01 and 04 is computed again, and says the same in both languages."""

import re

import pytest

from labs_utils import estimate
from labs_utils.answers.estimate import estimate_timeline
from labs_utils.device import H100, H200, find_device
from labs_utils.figures.lecture import VERDICTS, claims, lecture_said
from labs_utils.recordings import recall
from labs_utils.run import LLAMA_8B, Run

GIB, SCORED_TOKENS, PARAMETERS = 2**30, 4096, 8e9
A100, V100 = find_device("A100-80GB"), find_device("V100-32GB")
SHOWN_LABS = ("00", "01", "04")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def bytes_per_token_and_layer(attention):
    """What one more layer of the 8B model adds to the largest activations, for each token."""
    most = []
    for layers in (2, 3):
        model = {**LLAMA_8B.model_dump(), "num_hidden_layers": layers}
        timeline = estimate_timeline(Run(model=model, seq_len=SCORED_TOKENS, attention=attention), H200)
        most.append(max(moment.parts["activations"] for moment in timeline.moments()))
    return (most[1] - most[0]) / SCORED_TOKENS


def gib_of_zero(stage, device, seq_len, **fields):
    run = Run(model=LLAMA_8B, seq_len=seq_len, zero_stage=stage, world_size=8, **fields)
    return f"{estimate(run, device).peak_bytes / GIB:.1f}"


def recorded_seconds(stage, seq_len):
    run = Run(
        model=LLAMA_8B,
        seq_len=seq_len,
        zero_stage=stage,
        world_size=2,
        checkpointing="full",
        precision="bf16-master",
    )
    return f"{recall(run, H200)[0].step_seconds:.2f}"


def playbook_gib():
    """The Ultra-Scale Playbook's accounting of 8B at stage 3 on 8 ranks, with 16k tokens."""
    activations = 34 * 16384 * LLAMA_8B.hidden_size * LLAMA_8B.num_hidden_layers
    return f"{(12 * LLAMA_8B.parameters / 8 + activations) / GIB:.1f}"


def master(stage, checkpointing):
    return gib_of_zero(stage, H100, 16384, precision="bf16-master", checkpointing=checkpointing)


def on_v100(stage):
    return gib_of_zero(stage, V100, 512, precision="fp16-master")


COMPUTED = {
    "A model of 8 billion": lambda: (f"{4 * PARAMETERS / 1e9:.0f}", f"{4 * PARAMETERS / GIB:.1f}"),
    "Without the input": lambda: (f"{16 * PARAMETERS / 1e9:.0f}", f"{16 * PARAMETERS / GIB:.1f}"),
    "Attention takes": lambda: tuple(f"{bytes_per_token_and_layer(kind):,.0f}" for kind in ("eager", "sdpa")),
    "Transfers between G": lambda: (f"{H200.link_bytes_per_s / 1e9:.0f}", f"{A100.host_bytes_per_s / 1e9:.1f}", "63"),
    "With ZeRO-3": lambda: (playbook_gib(), master(3, "none"), master(3, "full"), master(3, "keep-attention")),
    "Speed depends": lambda: tuple(recorded_seconds(stage, s) for s in (16384, 2048) for stage in (3, 2)),
    "Eight V100": lambda: (on_v100(3), f"{V100.memory_bytes / GIB:.1f}", on_v100(2)),
}


@pytest.mark.parametrize("claim", COMPUTED)
def test_a_figure_is_what_is_computed_again(claim):
    (row,) = [each for each in claims() if each["claim_en"].startswith(claim)]
    assert set(COMPUTED[claim]()) <= set(NUMBER.findall(row["figure"]))


@pytest.mark.parametrize("lab", SHOWN_LABS)
def test_a_figure_has_the_same_numbers_in_both_languages(lab):
    differing = {
        each["claim_en"]: (each["figure"], each["figure_zh"])
        for each in claims(lab)
        if set(NUMBER.findall(each["figure_zh"])) - set(NUMBER.findall(each["figure"]))
    }
    assert claims(lab) and differing == {}


def test_every_verdict_has_its_words_in_chinese():
    assert {each["verdict"] for each in claims()} == VERDICTS.keys()


def test_a_lab_shows_its_own_claims_in_both_languages(capsys):
    lecture_said("04")
    shown = capsys.readouterr().out
    assert "Eight V100 of 32 GB" in shown and "8張V100" in shown and "有條件成立" in shown
    assert "Momentum and variance" not in shown
