"""Lab 05's oracles: memories that count what crosses, and answers in any natural form."""

import numpy as np
import pytest
import torch
from lab_cells import after, solution

from labs_utils.exercises.attempts import grade
from labs_utils.exercises.forbidden import forbidden_uses
from labs_utils.exercises.lab05 import cpu_offloaded_adam, fewest_micro_steps, offload_traffic, offloaded_seconds
from labs_utils.exercises.lab05.two_memories import TwoMemories


def test_two_memories_do_not_mix_and_count_what_crosses():
    memories = TwoMemories(device_bytes=1000)
    weight = memories.put_on_device(torch.ones(100, dtype=torch.bfloat16))
    with memories:
        wide = memories.to_host(weight).float()
        assert not memories.is_on_device(wide) and memories.is_on_device(weight.view(10, 10).t())
        with pytest.raises(RuntimeError, match="bring them together"):
            weight + wide
        with pytest.raises(RuntimeError, match="on the host already"):
            memories.to_host(wide)
        weight.copy_(wide)
        with pytest.raises(torch.OutOfMemoryError, match="asked for 400 bytes, and 0 of its 1,000 bytes are free"):
            [weight.float() for _ in range(3)]
    assert memories.moved == {"down": 200, "up": 200} and memories.used_bytes == 200


def graded(exercise, fn, seed=0):
    return grade(exercise, fn, np.random.default_rng(seed))


@pytest.mark.parametrize(
    "states",
    [lambda weight: [weight.cpu().float()], lambda weight: [torch.zeros_like(weight) for _ in "mv"]],
    ids=("copied by cpu", "like the weights"),
)
def test_states_on_the_device_are_said_to_fill_its_memory_and_not_the_processs(states):
    def keeps_them(memories, weights, gradients, state, lr):
        state["kept"] = [states(weight) for weight in weights]

    result = graded(cpu_offloaded_adam.EXERCISE, keeps_them)
    assert result.score == 0 and "DeviceIsFull: the device's memory is full: it was asked for" in result.message
    assert ".cpu()" in result.message and "of your code" in result.message
    assert "your code asked for more memory" not in result.message


def test_a_rounding_of_bytes_costs_nothing_and_a_byte_does():
    truth = {"down": 28812, "up": 14406}

    def score(down, up):
        return offload_traffic.compare_traffic(None, {"down": down, "up": up}, truth).score

    assert score(12 / 7 * 16807, 6 / 7 * 16807) == score(28811.999999999996, 14406) == 1
    assert score(28813.0, 14406.0) == 0.5


ASKS_THE_COURSE = """
def offload_traffic(parameters, stage, world_size, grad_accum):
    settings = {"engine": "deepspeed", "precision": "bf16-master", "offload": "optimizer", "zero_stage": stage}
    run = Run(model=TINY, seq_len=64, world_size=world_size, grad_accum=grad_accum, **settings)
    ways, of = moved_bytes(run), parameters / TINY.parameters
    return {"down": ways["device_to_host"] * of, "up": ways["host_to_device"] * of}
"""


@pytest.mark.slow
def test_bytes_that_the_course_counts_itself_are_flagged():
    namespace = after("lab05")
    exec(ASKS_THE_COURSE, namespace)
    assert graded(offload_traffic.EXERCISE, namespace["offload_traffic"]).score == 1
    assert forbidden_uses(offload_traffic.EXERCISE, ASKS_THE_COURSE) == ("uses deepspeed", "uses moved_bytes")
    for name in ("offload_seconds(run, rates)", "estimate(run)", "launch(run)"):
        assert forbidden_uses(offload_traffic.EXERCISE, name) == (f"uses {name.partition('(')[0]}",)


@pytest.mark.parametrize("number", [np.float64, lambda value: torch.tensor(value, dtype=torch.float64)])
@pytest.mark.parametrize(
    "module", [pytest.param(offload_traffic, marks=pytest.mark.slow), offloaded_seconds, fewest_micro_steps]
)
def test_numbers_of_numpy_and_torch_are_numbers(module, number):
    solved = solution(module.EXERCISE.id)

    def answers(*given):
        answer = solved(*given)
        if isinstance(answer, dict):
            return {way: number(count) for way, count in answer.items()}
        return number(answer) if isinstance(answer, float) else np.int64(answer) if answer else answer

    assert graded(module.EXERCISE, answers).score == 1
