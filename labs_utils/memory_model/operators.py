"""The operators of a Llama training step, in sizes: what each allocates, saves for backward and frees.

Every rule was read off PyTorch's autograd formulas (tools/autograd/derivatives.yaml) and the operators that
transformers' `modeling_llama.py` and Liger's autograd functions call; the tests compare the sums with both.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from labs_utils.memory_model import kernel_workspaces
from labs_utils.memory_model.tape import Storage, Tape, Tensor
from labs_utils.precision import FP32_BYTES

INDEX_BYTES = 8


class Operators:
    """Operators on a tape, for micro-batches of `batch` sequences of `seq_len` tokens.

    `autocast_bytes` is the item size that autocast gives matrix products (0: no autocast). `workspace_bytes` is what
    cuBLAS keeps for each thread on a GPU; 0 means a CPU, where kernels take nothing for themselves.
    """

    def __init__(self, tape: Tape, batch: int, seq_len: int, autocast_bytes: int = 0, workspace_bytes: int = 0):
        self.tape, self.batch, self.seq_len, self.tokens = tape, batch, seq_len, batch * seq_len
        self.autocast_bytes, self.workspace_bytes = autocast_bytes, workspace_bytes
        self.cast_weights: dict[int, Tensor] = {}
        self.keep_linears, self.kept, self.early_stop = False, None, False
        self._workspaces: dict[bool, Tensor] = {}

    def apply(self, name: str, elements: int, itemsize: int, backward, inputs, saves=(), part=None, flops=0) -> Tensor:
        """A fresh output whose node runs `backward` and holds what it `saves`."""
        output = self.tape.new(elements, itemsize, name, part, flops)
        return self.tape.differentiable(output, name, backward, inputs, saves)

    def like(self, tensor: Tensor, name: str, part: str | None = None, flops: int = 0) -> Tensor:
        """A fresh tensor of another's size, without history."""
        return self.tape.new(tensor.elements, tensor.itemsize, name, part, flops)

    def scratch(self, sizes: list[int], name: str) -> None:
        """Hold what a CUDA kernel takes for itself, for a moment."""
        if self.workspace_bytes:
            self.tape.scratch(sizes, name)

    def take_workspace(self) -> None:
        """cuBLAS keeps one workspace for the thread that runs forward and one for autograd's."""
        in_backward = "backward" in self.tape.phase
        if self.workspace_bytes and in_backward not in self._workspaces:
            self._workspaces[in_backward] = self.tape.new(self.workspace_bytes, 1, "cublas", "workspace")

    @contextmanager
    def no_autocast(self):
        """Inside an operator autocast is off."""
        before, self.autocast_bytes = self.autocast_bytes, 0
        yield
        self.autocast_bytes = before

    def cast(self, x: Tensor, itemsize: int, part: str | None = None) -> Tensor:
        """`x.to(dtype)`; saves nothing, and is no copy where the type is right already."""
        if x.itemsize == itemsize:
            return x
        before = x.itemsize
        return self.apply("to", x.elements, itemsize, lambda g: (self.cast(g, before, part),), (x,), part=part)

    def add(self, x: Tensor, y: Tensor, last: bool = False) -> Tensor:
        """The sum of equally large tensors; saves nothing. `last` as in `linear`."""
        sizes = (x.itemsize, y.itemsize)
        output = self.output(x.elements, max(sizes), "add", stopped=last and self.early_stop)
        backward = lambda g: tuple(self.cast(g, size) for size in sizes)  # noqa: E731
        return self.tape.differentiable(output, "add", backward, (x, y), ())

    def output(self, elements: int, itemsize: int, name: str, part=None, stopped: bool = False, flops=0) -> Tensor:
        """A fresh tensor; one without storage where a recomputation has stopped already."""
        if not stopped:
            return self.tape.new(elements, itemsize, name, part, flops)
        return Tensor(elements, itemsize, Storage(self.tape, 0, name, None))

    def scale(self, x: Tensor) -> Tensor:
        """`x` times a number; saves nothing."""
        return self.apply("mul", x.elements, x.itemsize, lambda g: (self.like(g, "mul"),), (x,))

    def view(self, x: Tensor, gradient_is_copied: bool = True) -> Tensor:
        """Another shape of the same storage; its gradient has to be copied into order, unless it is so already."""
        backward = (lambda g: (self.like(g, "clone"),)) if gradient_is_copied else (lambda g: (g,))
        return self.tape.differentiable(x.detach(), "view", backward, (x,), ())

    def contiguous(self, x: Tensor) -> Tensor:
        """A copy into order; saves nothing."""
        return self.apply("clone", x.elements, x.itemsize, lambda g: (g,), (x,))

    def linear(self, x: Tensor, weight: Tensor, part: str | None = None, last: bool = False) -> Tensor:
        """`x @ weight.T`; saves both. Under autocast both are cast first, a weight once for the whole forward.

        `last` marks a layer's last save: `torch.utils.checkpoint` recomputes up to it and no further (`early_stop`).
        """
        if self.autocast_bytes:
            weight, x = self._cast_weight(weight), self.cast(x, self.autocast_bytes)
        self.before_product(weight)
        self.take_workspace()
        elements, flops = weight.elements // (x.elements // self.tokens) * self.tokens, self._linear_flops(weight)
        compute = partial(self.output, elements, x.itemsize, "mm", part, last and self.early_stop, flops)
        output = self.kept_or(compute) if self.keep_linears else compute()
        return self.tape.differentiable(output, "linear", self._linear_backward, (weight, x), (weight, x))

    def _linear_backward(self, gradient: Tensor, weight: Tensor, x: Tensor) -> tuple:
        self.take_workspace()
        flops = self._linear_flops(weight)
        return self.like(weight, "mm", flops=flops), self.like(x, "mm", flops=flops)

    def before_product(self, weight: Tensor) -> None:
        """The weight is saved as its transpose."""
        self.tape.put_in_order(weight)

    def _linear_flops(self, weight: Tensor) -> int:
        """Each of a linear layer's three products: a multiplication and an addition a token and weight."""
        return 2 * self.tokens * weight.elements

    def _cast_weight(self, weight: Tensor) -> Tensor:
        if id(weight) not in self.cast_weights:
            self.cast_weights[id(weight)] = self.cast(weight, self.autocast_bytes)
        return self.cast_weights[id(weight)]

    def kept_or(self, compute) -> Tensor:
        """Selective checkpointing: forward puts an operator's output into `kept`, the recomputation takes it out."""
        if self.kept is None:
            return compute()
        if self.tape.grad_enabled:
            return self.kept.pop(0)
        self.kept.append(compute())
        return self.kept[-1].detach()

    def silu(self, x: Tensor) -> Tensor:
        """Saves its input."""
        return self.apply("silu", x.elements, x.itemsize, self._silu_backward, (x,), (x,))

    def _silu_backward(self, gradient: Tensor, x: Tensor) -> tuple:
        return (self.like(x, "silu_backward"),)

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """The product of equally large tensors; saves both."""
        return self.apply("mul", x.elements, x.itemsize, self._multiply_backward, (x, y), (x, y))

    def _multiply_backward(self, gradient: Tensor, x: Tensor, y: Tensor) -> tuple:
        return self.like(x, "mul"), self.like(y, "mul")

    def embedding(self, ids: Tensor, weight: Tensor, hidden_size: int) -> Tensor:
        """Saves the token ids."""

        def backward(gradient, ids):
            result = self.tape.new(elements, itemsize, "embedding_backward")
            self.scratch(
                kernel_workspaces.embedding_backward(ids.elements, elements // hidden_size, hidden_size), "embedding"
            )
            return (result,)

        elements, itemsize = weight.elements, weight.itemsize
        return self.apply("embedding", self.tokens * hidden_size, itemsize, backward, (weight,), (ids,))

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`F.cross_entropy` of fp32 logits: saves the fp32 log-probabilities and the labels."""
        log_softmax = self.apply(
            "log_softmax", logits.elements, FP32_BYTES, self._like_saved("logits"), (logits,), part="logits"
        )
        log_softmax.node.saved = (self.tape.save(log_softmax),)
        backward = self._like_saved("logits")
        return self.apply("nll_loss", 1, FP32_BYTES, backward, (log_softmax,), (log_softmax, labels))

    def _like_saved(self, part: str):
        def backward(gradient, saved, *others):
            return (self.like(saved, "backward", part),)

        return backward
