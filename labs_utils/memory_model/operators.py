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

    def multiply_broadcast(self, x: Tensor, factor: Tensor) -> Tensor:
        """`x` times one number a row or a column; saves both."""
        itemsize = max(x.itemsize, factor.itemsize)
        return self.apply("mul", x.elements, itemsize, self._broadcast_backward, (x, factor), (x, factor))

    def _broadcast_backward(self, gradient: Tensor, x: Tensor, factor: Tensor) -> tuple:
        for_x = self.like(gradient, "mul")
        product = self.like(gradient, "mul")
        for_factor = self.like(factor, "sum")
        del product
        return for_x, for_factor

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """`LlamaRMSNorm`: saves x in fp32, one fp32 number a token, and the normalised x in x's own type."""
        hidden = self.cast(x, FP32_BYTES)
        variance = self._mean_square(hidden)
        inverse_rms = self._rsqrt(variance)
        normalised = self.multiply_broadcast(hidden, inverse_rms)
        del hidden, inverse_rms
        return self.multiply_broadcast(self.cast(normalised, x.itemsize), weight)

    def _mean_square(self, x: Tensor) -> Tensor:
        def spread(gradient):
            return (self.tape.new(elements, FP32_BYTES, "div"),)

        elements = x.elements
        square = self.apply("pow", elements, FP32_BYTES, self._square_backward, (x,), (x,))
        return self.apply("mean", self.tokens, FP32_BYTES, spread, (square,))

    def _square_backward(self, gradient: Tensor, x: Tensor) -> tuple:
        steps = [self.like(x, name) for name in ("pow", "mul", "mul")]
        return (steps[-1],)

    def _rsqrt(self, variance: Tensor) -> Tensor:
        shifted = self.like(variance, "add")
        result = self.like(variance, "rsqrt")
        del shifted
        return self.tape.differentiable(result, "rsqrt", self._rsqrt_backward, (variance,), (result,))

    def _rsqrt_backward(self, gradient: Tensor, result: Tensor) -> tuple:
        steps = [self.like(result, name) for name in ("pow", "mul", "mul")]
        return (steps[-1],)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding, `x * cos + rotate_half(x) * sin`; saves cos and sin only."""
        straight = self._times_table(x, cos)
        return self.add(straight, self._times_table(self._rotate_half(x), sin))

    def _times_table(self, x: Tensor, table: Tensor) -> Tensor:
        def backward(gradient, table):
            return (self.like(gradient, "mul"),)

        before = x.itemsize
        output = self.apply("mul", x.elements, max(before, table.itemsize), backward, (x,), (table,))
        if output.node is not None:
            output.node.validate = lambda result: (self.cast(result, before),)
        return output

    def _rotate_half(self, x: Tensor) -> Tensor:
        first, second = self._half(x), self._half(x)
        negative = self.apply("neg", first.elements, x.itemsize, lambda g: (self.like(g, "neg"),), (second,))
        return self.apply("cat", x.elements, x.itemsize, self._cat_backward, (negative, first))

    def _half(self, x: Tensor) -> Tensor:
        """Half of every row, as a view; its gradient is a whole row again."""

        def backward(gradient):
            return (self.tape.new(2 * gradient.elements, gradient.itemsize, "slice_backward"),)

        view = Tensor(x.elements // 2, x.itemsize, x.storage)
        return self.tape.differentiable(view, "slice", backward, (x,), ())

    def _cat_backward(self, gradient: Tensor) -> tuple:
        half = Tensor(gradient.elements // 2, gradient.itemsize, gradient.storage)
        return half, half

    def softmax(self, x: Tensor) -> Tensor:
        """An fp32 softmax; saves its output."""
        output = self.tape.new(x.elements, FP32_BYTES, "softmax")
        return self.tape.differentiable(output, "softmax", self._softmax_backward, (x,), (output,))

    def _softmax_backward(self, gradient: Tensor, output: Tensor) -> tuple:
        result = self.like(output, "softmax_backward")
        self.scratch(kernel_workspaces.softmax_backward(output.elements), "softmax_backward")
        return (result,)

    def matmul(self, x, y, elements: int, inner: int, x_in_order: bool, y_in_order: bool, transposed=False) -> Tensor:
        """A batched matrix product; saves both, cast by autocast and copied into order (batch and heads as one).

        Sums run over `inner` products. `transposed` says that y is a transposed view, unless it has been copied.
        """
        if self.autocast_bytes:
            x, y = self.cast(x, self.autocast_bytes), self.cast(y, self.autocast_bytes)
        x, y = (t if in_order else self.contiguous(t) for t, in_order in ((x, x_in_order), (y, y_in_order)))
        self.tape.put_in_order(*[y] * (transposed and y_in_order))
        self.take_workspace()
        flops = 2 * elements * inner
        backward = partial(self._matmul_backward, flops)
        return self.apply("bmm", elements, x.itemsize, backward, (x, y), (x, y), flops=flops)

    def _matmul_backward(self, flops: int, gradient: Tensor, x: Tensor, y: Tensor) -> tuple:
        self.take_workspace()
        for_y = self.like(y, "bmm", flops=flops)
        return self.like(x, "bmm", flops=flops), for_y

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
