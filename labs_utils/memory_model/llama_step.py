"""A Llama training step in sizes: transformers' `modeling_llama.py`, written once more in symbolic operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from labs_utils.device import CPU, Device
from labs_utils.memory_model import liger
from labs_utils.memory_model.attention import ATTENTION
from labs_utils.memory_model.operators import INDEX_BYTES, Operators
from labs_utils.memory_model.rms_norm import rms_norm
from labs_utils.memory_model.rotary import rotate
from labs_utils.memory_model.tape import Checkpoint, Node, Tape, Tensor
from labs_utils.precision import FP32_BYTES, optimizer_states, precision_of
from labs_utils.run import ModelShape, Run


class Layer:
    """The weights of one decoder layer, in the order in which transformers makes them."""

    def __init__(self, model: ModelShape, new_weight: Callable[[int], Tensor]):
        hidden, query = model.hidden_size, model.num_attention_heads * model.head_dim
        key, mlp = model.num_key_value_heads * model.head_dim, model.hidden_size * model.intermediate_size
        sizes = [hidden * query, hidden * key, hidden * key, hidden * query, mlp, mlp, mlp, hidden, hidden]
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down, self.norm_1, self.norm_2 = map(new_weight, sizes)


class SymbolicStep:
    """The counterpart of `training.step.TrainingStep`: builds a run on a device; calling it runs one step."""

    operators = Operators

    def __init__(self, run: Run, device: Device = CPU):
        self.run, self.device, self.tape = run, device, Tape(offloads=run.checkpointing == "offload")
        self.precision = precision_of(run)
        self.itemsize, autocast_bytes = self.precision.weight.bytes, self.precision.autocast.bytes
        self.ops = self.operators(self.tape, run.micro_batch, run.seq_len, autocast_bytes, device.workspace_bytes)
        self.ops.keep_linears = run.checkpointing == "keep-matmul-attention"
        self.kernel = device.attention_kernel(run)
        self.attend = ATTENTION[self.kernel]
        self._build()

    def _build(self) -> None:
        model, tape = self.run.model, self.tape
        self.embedding = self.new_weight(model.embedding_parameters)
        self.layers = [Layer(model, self.new_weight) for _ in range(model.num_hidden_layers)]
        self.norm = self.new_weight(model.hidden_size)
        head = self.new_weight(model.embedding_parameters)
        self.head = self.embedding if model.tie_word_embeddings else head
        self.embedding.node.sums_in_place = bool(self.ops.autocast_bytes) or self.run.loss_kernel == "liger"
        others = [weight for layer in self.layers for weight in vars(layer).values()] + [self.norm]
        self.parameters = [self.embedding, *others] + ([] if model.tie_word_embeddings else [head])
        inverse_frequencies = [tape.new(model.head_dim // 2, FP32_BYTES, "buffer", "buffers") for _ in range(2)]
        batch = [tape.new(self.run.tokens, INDEX_BYTES, "batch", "buffers") for _ in range(2 + self.run.padded)]
        self.buffers, self.ids, self.labels = inverse_frequencies + batch, batch[0], batch[1]
        self.states: dict[int, list[Tensor]] = {}

    def new_weight(self, elements: int) -> Tensor:
        return self.tape.parameter(elements, self.itemsize)

    def __call__(self, prefix: str = "") -> None:
        """One optimizer step of at most two micro-steps, since later ones are like the second.

        `prefix` goes before the names of the phases.
        """
        for remaining in reversed(range(min(self.run.grad_accum, 2))):
            self.tape.begin(prefix + "forward")
            root = self.forward().node
            self.tape.begin(prefix + "backward")
            self.begin_backward(is_last=not remaining)
            self.tape.backward(root, self.tape.new(1, FP32_BYTES, "ones_like"))
            del root
            self.end_of_backward(is_last=not remaining)
        self.tape.begin(prefix + "optimizer")
        self.optimizer_step()

    def begin_backward(self, is_last: bool) -> None:
        """What an engine does as the backward of a micro-step begins; here nothing."""

    def end_of_backward(self, is_last: bool) -> None:
        """What an engine does with the gradients of a micro-step; here nothing."""

    def forward(self) -> Tensor:
        loss = self.module("causal_lm", lambda _: self._loss(self.module("model", self._hidden_states)))
        self.ops.cast_weights.clear()
        return loss

    def module(self, name: str, call, x: Tensor | None = None, weight: Tensor | None = None):
        """`call(x)`, as a module of the model that has this weight itself; engines act before and after it.

        `x` is its tensor argument, None where transformers passes it by name.
        """
        return call(x)

    def _hidden_states(self, _) -> Tensor:
        embed = lambda ids: self.ops.embedding(ids, self.embedding, self.run.model.hidden_size)  # noqa: E731
        hidden = embedded = self.module("embedding", embed, self.ids, self.embedding)
        mask, tables = self._mask(), self.module("rotary", lambda _: self._rotary_tables())
        for index, layer in enumerate(self.layers):
            hidden = self.module("layer", partial(self._layer, index, layer, context=(mask, tables)), hidden)
        hidden = self._rms_norm(hidden, self.norm)
        del embedded
        return hidden

    def _mask(self) -> Tensor | None:
        """The causal mask that eager attention and padding need: booleans for SDPA, numbers for eager attention."""
        run, elements = self.run, self.run.micro_batch * self.run.seq_len**2
        if self.kernel == "eager":
            return self.tape.new(elements, self.itemsize, "mask")
        return self.tape.new(elements, 1, "mask") if run.padded else None

    def _rotary_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines, sines, and the positions they were made from."""
        elements = self.run.seq_len * self.run.model.head_dim
        cos_and_sin = [self.tape.new(elements, self.itemsize, name) for name in ("cos", "sin")]
        return *cos_and_sin, self.tape.new(self.run.seq_len, INDEX_BYTES, "position_ids")

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.run.layer_kernels == "torch":
            return self.module("norm", lambda x: rms_norm(self.ops, x, weight), x, weight)
        return liger.rms_norm(self.ops, x, weight, self.device)

    def _linear(self, name: str, x: Tensor, weight: Tensor, **keywords) -> Tensor:
        return self.module(name, lambda x: self.ops.linear(x, weight, **keywords), x, weight)

    def _layer(self, index: int, layer: Layer, hidden: Tensor, context: tuple) -> Tensor:
        """One decoder layer, as it is or checkpointed."""
        if self.run.checkpointing.startswith("keep-"):
            return self._checkpoint(layer, hidden, context, kept=[])
        every = self.run.checkpoint_every
        if every and index % every == 0:
            return self._checkpoint(layer, hidden, context, kept=None)
        return self._decoder_layer(layer, hidden, *context)

    def _checkpoint(self, layer: Layer, hidden: Tensor, context: tuple, kept: list | None) -> Tensor:
        """`torch.utils.checkpoint`: run without saving, keep the input, run again in backward."""
        tape, ops = self.tape, self.ops

        def run_again(hidden: Tensor) -> Node:
            self.before_recomputing(layer)
            hidden.node, ops.kept, ops.early_stop = before, kept, True
            held = [hidden, *tables, *([] if mask is None else [mask])]
            if ops.keep_linears:
                held.append(kept[-1])
            again = tape.differentiable(hidden.detach(), "input", lambda g, *_: (g,), (hidden,), tuple(held))
            residual_gradient = ops.tape.new(hidden.elements, ops.autocast_bytes, "to")  # autocast's, made before this
            del held, hidden
            tape.recomputing = True
            output = self._decoder_layer(layer, again, *context)
            tape.recomputing = False
            del residual_gradient
            ops.kept, ops.early_stop = None, False
            ops.cast_weights.clear()
            return output.node

        before, (mask, tables) = hidden.node, context
        tape.grad_enabled, ops.kept = False, kept
        output = self._decoder_layer(layer, hidden.detach(), *context)
        tape.grad_enabled, ops.kept = True, None
        return tape.differentiable(output, "checkpoint", run_again, (hidden,), (hidden,), node_type=Checkpoint)

    def before_recomputing(self, layer: Layer) -> None:
        """What an engine does in a layer's backward until something saved is asked for; here nothing."""

    def _decoder_layer(self, layer: Layer, hidden: Tensor, mask: Tensor | None, tables: tuple) -> Tensor:
        """Attention and MLP, each after a norm and added to its input."""
        residual = hidden
        hidden = self._rms_norm(hidden, layer.norm_1)
        hidden, weights = self.module("attention", lambda _: self._attention(layer, hidden, mask, tables))
        hidden = self.ops.add(residual, hidden)
        residual = hidden
        hidden = self._rms_norm(hidden, layer.norm_2)
        hidden = self.module("mlp", partial(self._mlp, layer), hidden)
        return self.ops.add(residual, hidden, last=True)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        ops, gate, up = self.ops, partial(self._linear, "gate", x, layer.gate), partial(self._linear, "up", x, layer.up)
        if self.run.layer_kernels == "liger":
            product = liger.silu_mul(ops, gate(), up())
        else:
            product = ops.multiply(self.module("silu", ops.silu, gate()), up())
        return self._linear("down", product, layer.down, last=True)

    def _attention(self, layer: Layer, x: Tensor, mask: Tensor | None, tables: tuple) -> tuple[Tensor, Tensor | None]:
        ops = self.ops
        q, k, v = (self._linear("qkv", x, weight) for weight in (layer.q, layer.k, layer.v))
        q, k = self._rotary(q, k, tables)
        output, weights = self.attend(ops, self.run, q, k, v, mask)
        return self._linear("o", output, layer.o), weights

    def _rotary(self, q: Tensor, k: Tensor, tables: tuple) -> tuple[Tensor, Tensor]:
        ops, model = self.ops, self.run.model
        if self.run.layer_kernels == "liger":
            return q, k
        moved = [self.run.seq_len > 1 and heads > 1 for heads in (model.num_attention_heads, model.num_key_value_heads)]
        return tuple(rotate(ops, ops.view(x, copied), *tables[:2]) for x, copied in zip((q, k), moved, strict=True))

    def _loss(self, hidden: Tensor) -> Tensor:
        """transformers' `ForCausalLMLoss`: fp32 logits, labels shifted by one, mean cross-entropy."""
        ops, run = self.ops, self.run
        padded = self.tape.new(run.micro_batch * (run.seq_len + 1), INDEX_BYTES, "pad")
        labels = padded if run.micro_batch == 1 else self.tape.new(run.tokens, INDEX_BYTES, "clone")
        if run.loss_kernel == "liger":
            return liger.linear_cross_entropy(ops, hidden, self.head, labels)
        logits = self._linear("head", hidden, self.head, part="logits")
        return ops.cross_entropy(ops.cast(logits, FP32_BYTES, part="logits"), labels)

    def optimizer_step(self) -> None:
        self.update(self.parameters)
        self.drop_gradients()

    def update(self, parameters: list[Tensor]) -> None:
        """Make the states in the first step, and the temporary copies of the implementation."""
        name = self.run.optimizer
        for parameter in parameters:
            if id(parameter) not in self.states:
                self.states[id(parameter)] = self.new_states(parameter)
        if name == "adamw-foreach":
            roots = [self.ops.like(parameter, "foreach_sqrt") for parameter in parameters]
            del roots
        if name == "adamw-loop":
            for parameter in parameters:
                root = self.ops.like(parameter, "sqrt")
                denominator = self.ops.like(parameter, "div")
                del root
            del denominator

    def new_states(self, parameter: Tensor) -> list[Tensor]:
        """What the optimizer keeps for one tensor that it updates."""
        kept = optimizer_states(self.run.optimizer, parameter.elements, parameter.itemsize)
        return [self.tape.new(each.elements, each.itemsize, each.name, "optimizer_states") for each in kept]

    def new_master(self, elements: int) -> Tensor:
        """Weights in the type in which DeepSpeed's optimizer updates them."""
        return self.tape.new(elements, self.precision.updated.bytes, "master", "optimizer_states")

    def drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.node.gradient = None
