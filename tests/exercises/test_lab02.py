"""Lab 02's oracles: what they measure is what the lab says, and their cases tell right from wrong, for every seed."""

import numpy as np
import pytest
import torch
from places import TESTS
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from labs_utils.exercises import lab02, policies, recomputing, stretches
from labs_utils.exercises.contract import find
from labs_utils.exercises.grading import draw_cases, grade
from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.exercises.kept import kept_bytes
from labs_utils.pages.fill import solutions, wrong_answers
from labs_utils.run import LLAMA_8B, Run

SOLUTIONS = solutions(TESTS.parent / "solutions" / "lab02.py")
BEST = {
    "few tokens, room for all": "none",
    "few tokens, a little short": "keep-matmul-attention",
    "few tokens, halfway": "every-2",
    "many tokens, halfway": "keep-attention",
    "many tokens, tight": "full",
    "many tokens, hopeless": None,
}


def solution(name):
    namespace = {}
    exec(SOLUTIONS[f"lab02.{name}"], namespace)
    return namespace[name]


def random_module(generator, width):
    """Three to six layers of kinds that save different things, dropout among them."""
    kinds = (
        lambda: nn.Linear(width, width),
        nn.GELU,
        lambda: nn.Dropout(0.3),
        lambda: nn.LayerNorm(width),
        nn.Softplus,
        lambda: nn.Dropout(0.6),
    )
    chosen = generator.choice(len(kinds), size=generator.integers(3, 7))
    return nn.Sequential(nn.Linear(width, width), nn.Dropout(0.2), *(kinds[number]() for number in chosen))


def trained(checkpoint, seed):
    """Gradients of two random modules in a row with a plain operator around each, and random numbers after that."""
    generator, _ = np.random.default_rng(seed), torch.manual_seed(seed)
    width = int(generator.integers(3, 9))
    first, second = random_module(generator, width), random_module(generator, width)
    x, fixed = torch.randn(5, width, requires_grad=True), torch.randn(5, width)
    hidden = checkpoint(lambda a, b: first(a) * b, x.sin(), fixed).cos()
    loss = torch.nn.functional.dropout(checkpoint(second, hidden), 0.5).square().sum()
    loss.backward()
    weights = [*first.parameters(), *second.parameters()]
    return [x.grad, *(weight.grad for weight in weights), torch.rand(3)]


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_checkpoint_gives_bitwise_equal_gradients_with_dropout_on(seed):
    plain = trained(lambda fn, *inputs: fn(*inputs), seed)
    ours = trained(solution("checkpoint"), seed)
    torchs = trained(lambda fn, *inputs: torch_checkpoint(fn, *inputs, use_reentrant=False), seed)
    assert all(torch.equal(one, two) for one, two in zip(plain, ours, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(plain, torchs, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_the_reference_checkpoint_keeps_its_inputs_only(seed):
    checkpoint, generator = solution("checkpoint"), np.random.default_rng(seed)
    module, x = random_module(generator, 16), torch.randn(64, 16, requires_grad=True)
    fixed = torch.randn(64, 16)
    owned = [*module.parameters(), fixed]
    assert kept_bytes(lambda x: checkpoint(module, x * 1), [x], owned) == x.nbytes
    assert kept_bytes(lambda x: checkpoint(lambda a, b: module(a) * b, x * 1, fixed * 1), [x], owned) == 2 * x.nbytes
    assert kept_bytes(lambda x: module(x * 1), [x], owned) > x.nbytes


def test_checkpoints_nest_and_a_function_can_be_called_twice():
    checkpoint = solution("checkpoint")

    def gradients(checkpoint):
        torch.manual_seed(1)
        block = random_module(np.random.default_rng(1), 6)
        x = torch.randn(4, 6, requires_grad=True)
        twice = checkpoint(lambda x: checkpoint(block, checkpoint(block, x)), x)
        twice.square().sum().backward()
        return [x.grad, *(weight.grad for weight in block.parameters())]

    plain = gradients(lambda fn, *inputs: fn(*inputs))
    assert all(torch.equal(one, two) for one, two in zip(plain, gradients(checkpoint), strict=True))


def test_the_deep_chain_is_beyond_the_judges_cap_and_within_a_laptops_memory():
    kept = recomputing.DEEP_BLOCKS * 4 * recomputing.DEEP_FLOATS
    assert MEMORY_BYTES < 2 * kept <= kept * recomputing.DEEP_LAYERS < 1e9
    torchs_own, on_their_way = 96 * 2**20, 10 * 4 * recomputing.DEEP_FLOATS
    assert kept + torchs_own + on_their_way < 0.9 * MEMORY_BYTES


def test_the_deep_chains_truth_is_that_of_a_smaller_tensor():
    case = {"seed": 3, "tokens": 8, "width": 4}
    plain = [
        recomputing.deep(lambda fn, x: fn(x), case, floats)["the gradient of a deep chain"] for floats in (4096, 2**15)
    ]
    assert torch.equal(*plain)


@pytest.mark.parametrize("seed", range(3))
def test_layers_keep_what_the_closed_form_says_under_every_policy(seed):
    (case,) = draw_cases(lab02.policy_bytes, np.random.default_rng(seed), 1)
    truth, rule = lab02.policy_bytes.truth(case), lab02.each_policy(solution("policy_bytes"), case)
    assert truth == rule and len(set(truth.values())) == 7
    assert [layers % int(policy[6:]) == 0 for policy, layers in case["every"].items()] == [True, False, False]


def test_the_stubs_example_is_the_8b_models():
    model = LLAMA_8B.model_dump()
    assert solution("policy_bytes")(model, "none", 4096) == 26_324_500_480 == 32 * 4096 * 200_840
    assert solution("policy_bytes")(model, "full", 4096) == 1_073_741_824


@pytest.mark.parametrize("seed", range(20))
def test_each_situation_has_its_own_cheapest_policy(seed):
    case = policies.draw_limits(np.random.default_rng(seed))
    assert lab02.each_limit(solution("cheapest_policy"), case) == BEST
    for one in case.values():
        peaks = [policies.estimated_peak(one["run"], policy) for policy in policies.POLICIES]
        assert min(abs(one["limit_bytes"] / peak - 1) for peak in peaks) > 0.005  # estimates are exact to 16 bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_measured_peaks_and_counted_flops_agree_with_it(seed):
    case = policies.draw_limits(np.random.default_rng(seed))
    truth = lab02.cheapest_policy.truth(case)
    assert {name: one["best"] for name, one in truth.items()} == BEST
    for name, one in truth.items():
        run, tokens = case[name]["run"], case[name]["run"]["seq_len"] * case[name]["run"]["micro_batch"]
        again = {policy: found["flops_again"] for policy, found in one["measured"].items()}
        model = run["model"]
        hidden, layers, mlp = model["hidden_size"], model["num_hidden_layers"], model["intermediate_size"]
        width, keys = (model[f"num_{heads}_heads"] * model["head_dim"] for heads in ("attention", "key_value"))
        products, attention = 4 * tokens * hidden * (width + keys + mlp), 4 * tokens * run["seq_len"] * width
        full = products + attention  # without down's product: recomputation stops before it
        half = (layers + 1) // 2
        expected = {"every-2": half * full, "keep-attention": layers * products, "full": layers * full}
        assert abs(expected["every-2"] / expected["keep-attention"] - 1) > 0.005
        assert again == {"none": 0, "keep-matmul-attention": 0} | expected
        for policy, measured in one["measured"].items():
            estimated = policies.estimated_peak(case[name]["run"], policy)
            assert measured["peak_bytes"] == pytest.approx(estimated, abs=16)  # the loss, as two numbers


def rule(layers, input_bytes, layer_bytes, each):
    sizes = [min(each, layers - start) for start in range(0, layers, each)]
    return max(i * input_bytes + size * layer_bytes for i, size in enumerate(sizes, start=1))


@pytest.mark.parametrize("seed", range(5))
def test_a_real_stack_peaks_where_the_rule_says_up_to_what_is_on_its_way(seed):
    for stack in stretches.draw_stacks(np.random.default_rng(seed)).values():
        rules = [rule(**stack, each=each) for each in range(1, stack["layers"] + 1)]
        peaks = stretches.stretch_peaks(**stack)
        assert all(0 <= peak - by_rule < 512 for peak, by_rule in zip(peaks, rules, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["policy_bytes", "cheapest_policy", "segment_layers", "checkpoint"])
def test_the_solution_passes_and_no_wrong_answer_does_for_other_seeds(name):
    exercise = find(f"lab02.{name}")
    given = [one for one in wrong_answers(TESTS / "wrong_answers" / "lab02.py") if one.exercise_id == exercise.id]
    for seed in range(2):
        generator = np.random.default_rng(1000 + seed)
        assert grade(exercise, solution(name), generator, cases=1).score == 1
        for one in given:
            if not one.label.startswith("memory_"):
                namespace = {}
                exec(one.source, namespace)
                result = grade(exercise, namespace[name], np.random.default_rng(1000 + seed), cases=1)
                assert result.score < 1, (seed, one.label)


def test_a_run_that_the_docstring_shows():
    run = Run(model="tiny", seq_len=128, optimizer="sgd").to_dict()
    assert solution("cheapest_policy")(run, 40_000_000) == "none"
    assert solution("cheapest_policy")(run, 4_000_000) is None
    assert solution("segment_layers")(16, 1_000, 2_000) == 3 and solution("segment_layers")(16, 1_000, 40_000) == 1
