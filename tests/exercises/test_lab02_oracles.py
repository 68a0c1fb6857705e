"""Lab 02's oracles: what they measure is what the lab says, and their cases tell right from wrong, for every seed."""

import numpy as np
import pytest
import torch
from lab_cells import solution
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from labs_utils.exercises.attempts import draw_cases
from labs_utils.exercises.judge import MEMORY_BYTES
from labs_utils.exercises.lab02 import cheapest_policy, checkpoint, policy_bytes, segment_layers
from labs_utils.exercises.saved_bytes import kept_bytes
from labs_utils.run import LLAMA_8B, Run

BEST = {
    "few tokens, room for all": "none",
    "few tokens, a little short": "keep-matmul-attention",
    "few tokens, halfway": "every-2",
    "many tokens, halfway": "keep-attention",
    "many tokens, tight": "full",
    "many tokens, hopeless": None,
}


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
    ours = trained(solution("lab02.checkpoint"), seed)
    torchs = trained(lambda fn, *inputs: torch_checkpoint(fn, *inputs, use_reentrant=False), seed)
    assert all(torch.equal(one, two) for one, two in zip(plain, ours, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(plain, torchs, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_the_reference_checkpoint_keeps_its_inputs_only(seed):
    solved, generator = solution("lab02.checkpoint"), np.random.default_rng(seed)
    module, x = random_module(generator, 16), torch.randn(64, 16, requires_grad=True)
    fixed = torch.randn(64, 16)
    owned = [*module.parameters(), fixed]
    assert kept_bytes(lambda x: solved(module, x * 1), [x], owned) == x.nbytes
    assert kept_bytes(lambda x: solved(lambda a, b: module(a) * b, x * 1, fixed * 1), [x], owned) == 2 * x.nbytes
    assert kept_bytes(lambda x: module(x * 1), [x], owned) > x.nbytes


def test_checkpoints_nest_and_a_function_can_be_called_twice():
    def gradients(checkpoint):
        torch.manual_seed(1)
        block = random_module(np.random.default_rng(1), 6)
        x = torch.randn(4, 6, requires_grad=True)
        twice = checkpoint(lambda x: checkpoint(block, checkpoint(block, x)), x)
        twice.square().sum().backward()
        return [x.grad, *(weight.grad for weight in block.parameters())]

    plain = gradients(lambda fn, *inputs: fn(*inputs))
    assert all(torch.equal(one, two) for one, two in zip(plain, gradients(solution("lab02.checkpoint")), strict=True))


def test_the_deep_chain_is_beyond_the_judges_cap_and_within_a_laptops_memory():
    kept = checkpoint.DEEP_BLOCKS * 4 * checkpoint.DEEP_FLOATS
    assert MEMORY_BYTES < 2 * kept <= kept * checkpoint.DEEP_LAYERS < 1e9
    torchs_own, on_their_way = 96 * 2**20, 10 * 4 * checkpoint.DEEP_FLOATS
    assert kept + torchs_own + on_their_way < 0.9 * MEMORY_BYTES


def test_the_deep_chains_truth_is_that_of_a_smaller_tensor():
    case = {"seed": 3, "tokens": 8, "width": 4}
    plain = [
        checkpoint.deep(lambda fn, x: fn(x), case, floats)["the gradient of a deep chain"] for floats in (4096, 2**15)
    ]
    assert torch.equal(*plain)


@pytest.mark.parametrize("seed", range(3))
def test_layers_keep_what_the_closed_form_says_under_every_policy(seed):
    (case,) = draw_cases(policy_bytes.EXERCISE, np.random.default_rng(seed), 1)
    exercise = policy_bytes.EXERCISE
    truth, rule = exercise.truth(case), exercise.call(solution("lab02.policy_bytes"), case)
    assert truth == rule and len(set(truth.values())) == 7
    assert [layers % int(policy[6:]) == 0 for policy, layers in case["every"].items()] == [True, False, False]


def test_the_stubs_example_is_the_8b_models():
    model = LLAMA_8B.model_dump()
    assert solution("lab02.policy_bytes")(model, "none", 4096) == 26_324_500_480 == 32 * 4096 * 200_840
    assert solution("lab02.policy_bytes")(model, "full", 4096) == 1_073_741_824


@pytest.mark.parametrize("seed", range(5))
def test_each_situation_has_its_own_cheapest_policy(seed):
    case = cheapest_policy.draw_limits(np.random.default_rng(seed))
    assert cheapest_policy.EXERCISE.call(solution("lab02.cheapest_policy"), case) == BEST
    for one in case.values():
        peaks = [cheapest_policy.estimated_peak(one["run"], policy) for policy in cheapest_policy.POLICIES]
        assert min(abs(one["limit_bytes"] / peak - 1) for peak in peaks) > 0.005  # estimates are exact to 16 bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_tracked_peaks_and_counted_flops_agree_with_it(seed):
    case = cheapest_policy.draw_limits(np.random.default_rng(seed))
    truth = cheapest_policy.EXERCISE.truth(case)
    assert {name: one["best"] for name, one in truth.items()} == BEST
    for name, one in truth.items():
        run, tokens = case[name]["run"], case[name]["run"]["seq_len"] * case[name]["run"]["micro_batch"]
        again = {policy: step["flops_again"] for policy, step in one["steps"].items()}
        model = run["model"]
        hidden, layers, mlp = model["hidden_size"], model["num_hidden_layers"], model["intermediate_size"]
        width, keys = (model[f"num_{heads}_heads"] * model["head_dim"] for heads in ("attention", "key_value"))
        products, attention = 4 * tokens * hidden * (width + keys + mlp), 4 * tokens * run["seq_len"] * width
        full = products + attention  # without down's product: recomputation stops before it
        half = (layers + 1) // 2
        expected = {"every-2": half * full, "keep-attention": layers * products, "full": layers * full}
        assert abs(expected["every-2"] / expected["keep-attention"] - 1) > 0.005
        assert again == {"none": 0, "keep-matmul-attention": 0} | expected
        for policy, step in one["steps"].items():
            estimated = cheapest_policy.estimated_peak(case[name]["run"], policy)
            assert step["peak_bytes"] == pytest.approx(estimated, abs=16)  # the loss, as two numbers


def rule(layers, input_bytes, layer_bytes, each):
    sizes = [min(each, layers - start) for start in range(0, layers, each)]
    return max(i * input_bytes + size * layer_bytes for i, size in enumerate(sizes, start=1))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_a_real_stack_peaks_where_the_rule_says_up_to_what_is_on_its_way(seed):
    for stack in segment_layers.draw_stacks(np.random.default_rng(seed)).values():
        rules = [rule(**stack, each=each) for each in range(1, stack["layers"] + 1)]
        peaks = segment_layers.segment_peaks(**stack)
        assert all(0 <= peak - by_rule < 512 for peak, by_rule in zip(peaks, rules, strict=True))


def test_a_run_that_the_docstring_shows():
    run = Run(model="tiny", seq_len=128, optimizer="sgd").to_dict()
    assert solution("lab02.cheapest_policy")(run, 40_000_000) == "none"
    assert solution("lab02.cheapest_policy")(run, 4_000_000) is None
    assert [solution("lab02.segment_layers")(16, 1_000, nbytes) for nbytes in (2_000, 40_000)] == [3, 1]
