"""Lab 03, batch size and gradient accumulation: held against full batches, real samplers and measured runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from json import dumps, loads
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DistributedSampler

from labs_utils.device import CPU
from labs_utils.dry_run import warm_up, watch_optimizer, watch_parts
from labs_utils.estimate import estimate
from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise
from labs_utils.exercises.kept import compare_bytes, compare_each, mean_mark
from labs_utils.run import Run
from labs_utils.timeline import Timeline
from labs_utils.tracker import MemoryTracker
from labs_utils.training import IGNORED_LABEL, TrainingStep

GRADIENT_TOLERANCE = 1e-5  # of the gradient's length: all is in fp64, unless a student computes the loss in fp32
PEAK_TOLERANCE = 0.005  # tensors of a few bytes that come and go beside a gradient
MOST_CALLS = 20
UNESTIMATED_BYTES = 64  # tensors of one number, which a measured peak has and an estimated one hasn't
PLAN_KEYS = ("target_tokens", "seq_len", "world_size", "largest_micro_batch", "sequences")


def draw_plans(rng) -> dict:
    """Batches that need one micro-step, a few and many; two divide evenly, one of them into the largest micro-batch."""
    return {
        "one micro-step": draw_plan(rng, accumulation=1),
        "a few micro-steps": draw_plan(rng, accumulation=int(rng.integers(2, 6))),
        "many micro-steps": draw_plan(rng, accumulation=int(rng.integers(12, 40))),
        "full micro-steps": draw_even_plan(rng, spare=0),
        "even micro-steps": draw_even_plan(rng, spare=1),
    }


def draw_even_plan(rng, spare: int) -> dict:
    """A target that a plan reaches exactly, with micro-batches of so many sequences less than the largest."""
    world_size, seq_len = 2 ** int(rng.integers(1, 6)), 512 * int(rng.integers(2, 9))
    micro_batch, accumulation = int(rng.integers(9, 20)), int(rng.integers(2, 8))
    sequences = micro_batch * accumulation * world_size
    return {
        "target_tokens": sequences * seq_len,
        "seq_len": seq_len,
        "world_size": world_size,
        "largest_micro_batch": micro_batch + spare,
        "sequences": sequences * int(rng.integers(20, 200)),
    }


def draw_plan(rng, accumulation: int) -> dict:
    """A batch that needs so many micro-steps, of which the last may be only partly needed, and some tokens less."""
    world_size, seq_len = 2 ** int(rng.integers(1, 6)), 512 * int(rng.integers(2, 9))
    micro_batch = int(rng.integers(9, 20))
    most_spare = micro_batch if accumulation == 1 else (micro_batch - 1) // (accumulation - 1)
    spare = int(rng.integers(min(1, most_spare), most_spare + 1))
    unused = int(rng.integers(min(accumulation, micro_batch - (accumulation - 1) * spare)))
    needed_tokens = (micro_batch * accumulation - unused) * seq_len * world_size
    return {
        "target_tokens": needed_tokens - int(rng.integers(1, seq_len * world_size)),
        "seq_len": seq_len,
        "world_size": world_size,
        "largest_micro_batch": micro_batch + spare,
        "sequences": int(micro_batch * accumulation * world_size * (rng.integers(20, 200) + rng.uniform(0.6, 0.9))),
    }


def searched_plan(case: dict) -> dict:
    """The first plan that reaches the target, tried one by one, and the steps that torch's samplers make."""
    for grad_accum in count(1):
        for micro_batch in range(1, case["largest_micro_batch"] + 1):
            tokens = micro_batch * grad_accum * case["world_size"] * case["seq_len"]
            if tokens >= case["target_tokens"]:
                sampler = DistributedSampler(range(case["sequences"]), case["world_size"], rank=0, drop_last=True)
                micro_batches = len(BatchSampler(sampler, micro_batch, drop_last=True))
                steps = micro_batches // grad_accum
                plan = {"micro_batch": micro_batch, "grad_accum": grad_accum}
                return {**plan, "tokens_per_step": tokens, "steps": steps}


def compare_plan(got: Any, expected: dict) -> tuple[float, str]:
    """`close`, with the question that leads to what is wrong."""
    score, sentence = close(None, got, expected)
    causes = {
        "grad_accum": "how many sequences fit all ranks in one micro-step, and what if the last is only partly needed?",
        "micro_batch": "with this many micro-steps, need the micro-batch be the largest?",
        "tokens_per_step": "count what a step really reads, not what was asked for",
        "steps": "a step reads whole micro-batches, on every rank, grad_accum times",
    }
    named = sentence.partition(":")[0]
    return score, f"{sentence}: {causes[named]}" if named in causes else sentence


batch_plan = Exercise(
    id="lab03.batch_plan",
    points=2,
    draw=draw_plans,
    call=lambda fn, case: {name: fn(*(part[key] for key in PLAN_KEYS)) for name, part in case.items()},
    truth=lambda case: {name: searched_plan(part) for name, part in case.items()},
    compare=partial(compare_each, compare_plan),
    hints=(
        "tokens in a step = micro_batch * seq_len * grad_accum * world_size; everything but two factors is given.",
        "At least means rounding up: -(-a // b) is a / b, rounded up.",
        "First grad_accum, with the largest micro-batch; then the smallest micro_batch that is enough with it.",
    ),
)


class Keep(torch.autograd.Function):
    """Passes hidden states on, and keeps so many bytes a token for backward: it makes a deep model of a small one."""

    @staticmethod
    def forward(ctx, hidden: torch.Tensor, bytes_per_token: int) -> torch.Tensor:
        tokens = hidden.shape[:-1].numel()
        ctx.save_for_backward(torch.empty(tokens, bytes_per_token, dtype=torch.uint8))  # never touched: takes no time
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        assert len(ctx.saved_tensors) == 1  # raises where backward has run already
        return gradient, None


class SmallModel(torch.nn.Module):
    """A language model of a few parameters and no attention; `model(input_ids)` returns logits."""

    def __init__(self, vocab_size: int = 64, width: int = 8, bytes_per_token: int = 0):
        super().__init__()
        self.bytes_per_token = bytes_per_token
        self.embedding = torch.nn.Embedding(vocab_size, width)
        self.inner = torch.nn.Linear(width, width, bias=False)
        self.head = torch.nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = Keep.apply(self.embedding(input_ids), self.bytes_per_token)
        return self.head(hidden + torch.relu(self.inner(hidden)))


def draw_accumulations(rng) -> dict:
    """Batches cut into micro-batches, by the targets of each row; the last keeps 2 GiB where 512 MiB are allowed."""
    unequal = [int(n) for n in rng.permutation([2, 3, 5, 8, 13])]
    many = [int(n) for n in rng.permutation([*range(1, 14), *range(3, 10)])]
    batches = {
        "equal counts": {"targets": [7] * 4},
        "unequal counts": {"targets": unequal},
        "a micro-batch without labels": {"targets": [*unequal[:2], 0, *unequal[2:]]},
        "gradients left from before": {"targets": unequal, "leftover": 1.0},
        "many micro-batches": {"targets": many, "bytes_per_token": 7 * 2**19},
    }
    defaults = {"leftover": 0.0, "bytes_per_token": 0}
    return {name: {"seed": int(rng.integers(2**31)), **defaults, **batch} for name, batch in batches.items()}


def model_and_batches(part: dict) -> tuple[SmallModel, list[dict[str, torch.Tensor]]]:
    """The model in fp64, and micro-batches of two rows, not all as long; some use fewer words, and are easier."""
    generator = torch.Generator().manual_seed(part["seed"])
    model = SmallModel(bytes_per_token=part["bytes_per_token"]).double()
    for weight in model.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * weight.shape[-1] ** -0.5
    batches = []
    for number, targets in enumerate(part["targets"]):
        tokens = max(part["targets"]) + 2 + number % 3
        ids = torch.randint(64 // (1 + targets % 3), (2, tokens), generator=generator)
        labels = ids.clone()
        labels[:, targets + 1 :] = IGNORED_LABEL
        labels[0, 1 if targets > 1 else 0] = IGNORED_LABEL  # a word of a prompt
        labels[1, 0] = ids[1, 0] if targets else IGNORED_LABEL
        batches.append({"input_ids": ids, "labels": labels})
    return model, batches


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients in one vector, zeros where there is none."""
    each = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in each])


def accumulated(function: Callable, part: dict) -> dict:
    """What `function(model, batches)` leaves in the gradients, what it returns, and what else it changes."""
    model, batches = model_and_batches(part)
    before = state_of(model, batches)
    if part["leftover"]:
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, part["leftover"])
    with torch.enable_grad():
        loss = function(model, list(batches))
    after = state_of(model, batches)
    changed = [name for name in before if not same(before[name], after[name])]
    return {"gradient": flat_gradient(model), "loss": float(loss), "changed": changed}


def state_of(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> dict[str, list]:
    """What has to be afterwards as it was before, in copies."""
    return {
        "weights": [weight.detach().clone() for weight in model.parameters()],
        "requires_grad": [weight.requires_grad for weight in model.parameters()],
        "training": [module.training for module in model.modules()],
        "batches": [copy(batch.get(key)) for batch in batches for key in ("input_ids", "labels")],
    }


def copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def same(one: list, other: list) -> bool:
    """Whether two lists are equal, tensors to the last bit."""
    if len(one) != len(other):
        return False
    pairs = zip(one, other, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b for a, b in pairs
    )


def full_batch(model: torch.nn.Module, batches: list[dict]) -> float:
    """The mean loss over all targets of all rows, and its gradient, by torch's own mean in one piece."""
    model.zero_grad()
    fillers = {"input_ids": 0, "labels": IGNORED_LABEL}
    ids, labels = (
        pad_sequence([row for batch in batches for row in batch[key]], batch_first=True, padding_value=filler)
        for key, filler in fillers.items()
    )
    has_target = labels != IGNORED_LABEL
    has_target[:, 0] = False
    places = has_target.nonzero()
    states = model(ids)[places[:, 0], places[:, 1] - 1]
    loss = F.cross_entropy(states, labels[has_target])
    loss.backward()
    return loss.item()


def compare_gradient(got: Any, expected: dict) -> tuple[float, str]:
    """Three quarters for the gradient, a quarter for the loss; nothing where anything else is changed."""
    if type(got) is not dict or got["gradient"].shape != expected["gradient"].shape:
        return close(None, got, expected)
    if got["changed"]:
        return 0.0, f"only .grad is to change; these did too: {', '.join(got['changed'])}"
    gradient, truth = got["gradient"], expected["gradient"]
    score, sentence = 1.0, "as expected"
    if not (gradient - truth).norm() <= GRADIENT_TOLERANCE * truth.norm():
        score, sentence = 0.0, describe_gradient(gradient, truth)
    loss, loss_sentence = close(None, got["loss"], expected["loss"], rel=GRADIENT_TOLERANCE)
    return 0.75 * score + 0.25 * loss, sentence if score < 1 else loss_sentence.replace("expected", "the loss is", 1)


def describe_gradient(gradient: torch.Tensor, truth: torch.Tensor) -> str:
    """How a wrong gradient lies to the right one."""
    if not gradient.isfinite().all():
        return "the gradient isn't finite: the mean of a micro-batch without labels is 0 / 0"
    times = (gradient @ truth / (truth @ truth)).item()
    off = ((gradient - times * truth).norm() / truth.norm()).item()
    if off <= GRADIENT_TOLERANCE:
        return f"the gradient points the right way, and is {times:.4g} times as long: divided by what, and how often?"
    return f"the gradient is off by {off:.2g} of its length: does every target token weigh the same? what was in .grad?"


accumulate = Exercise(
    id="lab03.accumulate",
    points=4,
    draw=draw_accumulations,
    call=lambda fn, case: {name: accumulated(fn, part) for name, part in case.items()},
    truth=lambda case: {name: accumulated(full_batch, part) for name, part in case.items()},
    compare=partial(compare_each, compare_gradient),
    hints=(
        "Count the targets of all micro-batches before the first backward: that is the one denominator.",
        'F.cross_entropy(…, reduction="sum") adds up losses without dividing; gradients of sums add up too.',
        "backward() in every micro-step frees what forward kept; one backward at the end keeps it all.",
    ),
    forbidden=("labs_utils", "accelerate", "transformers", "num_items_in_batch"),
)


@cache
def measured(run_json: str) -> Timeline:
    """A run's step on this CPU: its micro-steps are the phases "0", "1", and so on, and "optimizer" comes last."""
    run, tracker = Run.parse(loads(run_json)), MemoryTracker()
    with torch.enable_grad(), tracker:  # a student's code may have turned gradients off
        step = TrainingStep(run, "cpu")
        watch_parts(tracker, step)
        warm_up(step, tracker, CPU, 1)
        watch_optimizer(tracker, step)
        for number in range(run.grad_accum):
            step.micro_step(lambda phase, number=number: tracker.phase(str(number)))
        tracker.phase("optimizer")
        step.optimizer_step()
        tracker.phase("after")
    return tracker.timeline


def draw_runs(rng) -> dict:
    """Recordings of three runs: many activations; few, so that gradients decide; a checkpointed one. One made up."""
    long, checkpointed = draw_width(rng), draw_width(rng)
    long_len, checkpointed_len = (int(width * rng.uniform(3, 6)) for width in (long, checkpointed))
    vocab_size, checkpointed_vocab = 1000 * int(rng.integers(5, 9)), checkpointed * int(rng.integers(2, 5))
    return {
        "long sequence": draw_run(rng, long, vocab_size=64, seq_len=long_len),
        "short sequence": draw_run(rng, draw_width(rng), vocab_size=vocab_size, seq_len=int(rng.integers(2, 5))),
        "checkpointed": draw_run(
            rng, checkpointed, vocab_size=checkpointed_vocab, seq_len=checkpointed_len, checkpointing="full"
        ),
        "sharp moments": draw_sharp(rng),
    }


def draw_sharp(rng) -> dict:
    """A recording that no run made: the moments at which gradients are made stand out from those around them.

    The larger the gradient, the less there is of everything else.
    """
    made = [1000 * int(n) + int(rng.integers(1000)) for n in rng.permutation([100, 130, 160, 190, 220])]
    rest, gradients = [int(rng.integers(100_000, 300_000))], [0]
    for anew in made:
        rest += [int(rng.integers(900_000, 920_000)) - anew // 2, int(rng.integers(100_000, 300_000))]
        gradients += [gradients[-1] + anew, gradients[-1] + anew]
    return {"run": {"grad_accum": int(rng.integers(3, 6))}, "gradients": gradients, "rest": rest}


def draw_width(rng) -> int:
    return 32 * int(rng.integers(2, 5))


def draw_run(rng, width: int, vocab_size: int, **settings) -> dict:
    """A run of a small model, and what was recorded in its first micro-step."""
    model = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 1, "num_attention_heads": 4}
    run = {"model": {**model, "vocab_size": vocab_size}, "grad_accum": int(rng.integers(2, 5)), **settings}
    moments = list(measured(dumps(run)).moments(("0",)))
    gradients = [moment.parts["gradients"] for moment in moments]
    rest = [moment.live_bytes - held for moment, held in zip(moments, gradients, strict=True)]
    return {"run": run, "gradients": gradients, "rest": rest}


def micro_step_peaks_of(part: dict) -> list[int]:
    run = part["run"]
    if "model" not in run:
        return simulated_peaks(part)
    timeline = measured(dumps(run))
    return [timeline.peak(str(number)).live_bytes for number in range(run["grad_accum"])]


def simulated_peaks(part: dict) -> list[int]:
    """What is in use moment by moment: a gradient that is made is the first, or is there beside the sum of others."""
    held, peaks = 0, []
    for number in range(part["run"]["grad_accum"]):
        in_use, made = [], 0
        for rest, all_made in zip(part["rest"], part["gradients"], strict=True):
            anew, made = all_made - made, all_made
            in_use.append(rest + held + anew)
            held += anew if number == 0 else 0
        peaks.append(max(in_use))
    return peaks


def compare_peaks(got: Any, expected: list) -> tuple[float, str]:
    """Nothing without the second micro-step, which is the question; all of them for full marks."""
    if type(got) is not list or len(got) != len(expected):
        return close(None, got, expected)
    few = "which gradients are there while it runs, and what is made beside them before it is added?"
    many = "what is in use at the same moment? The first peak may hold gradients already"
    marks = {
        f"micro-step {n}": compare_bytes(one, other, PEAK_TOLERANCE, few, many)
        for n, (one, other) in enumerate(zip(got, expected, strict=True), start=1)
    }
    score, sentence = mean_mark(marks)
    return score if marks["micro-step 2"][0] == 1 else 0.0, sentence


micro_step_peaks = Exercise(
    id="lab03.micro_step_peaks",
    points=3,
    draw=draw_runs,
    call=lambda fn, case: {
        name: fn(part["rest"], part["gradients"], part["run"]["grad_accum"]) for name, part in case.items()
    },
    truth=lambda case: {name: micro_step_peaks_of(part) for name, part in case.items()},
    compare=partial(compare_each, compare_peaks),
    hints=(
        "Go moment by moment: what would be in use then in the second micro-step? Then take the largest.",
        "All gradients together take gradients[-1]; from the second micro-step on they are there at every moment.",
        "Where gradients[i] is larger than gradients[i - 1], backward makes that much anew, and frees it once added.",
    ),
    forbidden=("labs_utils",),
)


def draw_searches(rng) -> dict:
    """A device that many sequences fit on to the last byte, one that just one fits on, and one too small for any."""
    return {
        "many fit": draw_search(rng, int(rng.integers(65, 110))),
        "one fits": draw_search(rng, 1),
        "none fits": draw_search(rng, 0),
    }


def draw_search(rng, fits: int) -> dict:
    """A run whose peak is at the end of backward for small micro-batches, and memory for `fits` sequences."""
    width = draw_width(rng)
    layers, vocab_size = int(rng.integers(1, 3)), 100 * int(rng.integers(2, 6))
    model = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    settings = {"model": {**model, "num_attention_heads": 4, "vocab_size": vocab_size}}
    settings["seq_len"] = 2 * int(rng.integers(2, 6)) if fits > 1 else 96
    enough = peak_bytes(settings, fits) if fits else 0
    spare = 0 if fits > 1 else rng.uniform(0.2, 0.8) * (peak_bytes(settings, fits + 1) - enough)
    return {"run": settings, "memory_bytes": int(enough + spare)}


def peak_bytes(settings: dict, micro_batch: int) -> int:
    """The estimated peak of a run with that micro-batch, on a CPU: what its tensors take."""
    return estimated_bytes(dumps({**settings, "micro_batch": micro_batch}))


@cache
def estimated_bytes(run_json: str) -> int:
    with torch.enable_grad():
        return estimate(Run.parse(loads(run_json)), CPU).peak_bytes


def searched(function: Callable, part: dict) -> dict:
    """What `function` finds, and with how many calls."""
    tried = []

    def counted(micro_batch: int) -> int:
        tried.append(micro_batch)
        return peak_bytes(part["run"], int(micro_batch))

    return {"micro_batch": function(counted, part["memory_bytes"]), "calls": len(tried)}


def largest_that_fits(part: dict) -> int:
    """The largest micro-batch within the memory: searched with the estimate, and the end of that measured."""
    found = bisect_right(range(1, 1000), part["memory_bytes"], key=partial(peak_bytes, part["run"]))
    while fits(part, found + 1):
        found += 1
    while found and not fits(part, found):
        found -= 1
    return found


def fits(part: dict, micro_batch: int) -> bool:
    timeline = measured(dumps({**part["run"], "micro_batch": micro_batch}))
    return timeline.peak("0", "optimizer").live_bytes <= part["memory_bytes"] + UNESTIMATED_BYTES


def compare_search(got: dict, expected: int) -> tuple[float, str]:
    """Half for a right answer that took too many calls."""
    score, sentence = close(None, got["micro_batch"], expected)
    if score < 1:
        return score, f"{sentence}: does it fit, and does one more not fit?"
    if got["calls"] > MOST_CALLS:
        return 0.5, f"right, but with {got['calls']} calls; {MOST_CALLS} are allowed: halve what is left each time"
    return score, sentence


largest_micro_batch = Exercise(
    id="lab03.largest_micro_batch",
    points=3,
    draw=draw_searches,
    call=lambda fn, case: {name: searched(fn, part) for name, part in case.items()},
    truth=lambda case: {name: largest_that_fits(part) for name, part in case.items()},
    compare=partial(compare_each, compare_search),
    hints=(
        "First find a micro-batch that doesn't fit, in few calls: double until it happens.",
        "Then one end fits and the other doesn't. Try the middle, and keep the half whose ends differ.",
        "For small micro-batches the peak may not move at all, so two of them don't tell how it grows.",
    ),
    forbidden=("labs_utils",),
)

EXERCISES = (batch_plan, accumulate, micro_step_peaks, largest_micro_batch)
