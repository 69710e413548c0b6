"""Fewer, larger operations in transformers' own model code: merged QKV, merged gate-up, fused RMSNorm.

Modules are found by their names and shapes, and each replacement is compared with what it replaces on random inputs;
what does not agree is left out with a note. Merging moves weights: the merged one is the only copy, and the parameters
of the modules, which stay the same objects, become views of it. So fuse before quantizing, and before capturing graphs.

        q_proj.weight  k_proj.weight  v_proj.weight
       |--------------|--------------|--------------|   one tensor [q + k + v, hidden]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferdoc.engine.packing import PackedLinear
from inferdoc.engine.quantized_linear import QuantizedLinear

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_RELATIVE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference as a share of the largest output: a few roundings in each type. In float64 too it is a rounding to
float32, which transformers' norms make in every type. A wrong offset or epsilon gives far more."""

_MODEL = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
"""As `_RELATIVE`, for the logits: roundings add up over the layers."""


class MergedProduct:
    """The product of one input with the weights of several modules, held from the first module's call to the last's."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> None:
        self.weight = weight
        self.bias = bias
        self.sizes = list(sizes)
        self.quantized: Callable[[Tensor], Tensor] | None = None
        """What multiplies instead of the weight, bias included."""
        self._input: Tensor | None = None
        self._parts: dict[int, Tensor] = {}

    @property
    def pending(self) -> bool:
        """Some module has not taken its part."""
        return self._input is not None

    def parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Every module's part of the product with `hidden`."""
        product = (
            functional.linear(hidden, self.weight, self.bias) if self.quantized is None else self.quantized(hidden)
        )
        return torch.split(product, self.sizes, dim=-1)

    def take(self, index: int, hidden: Tensor) -> Tensor | None:
        """Module `index`'s part of the product with `hidden`; None while another input's product is handed out."""
        if self._input is None:
            parts = self.parts(hidden)
            self._input = hidden
            self._parts = dict(enumerate(parts))
        elif self._input is not hidden or index not in self._parts:
            return None
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part

    def release(self) -> None:
        self._input = None
        self._parts = {}


class MergedLinear(nn.Linear):
    """One of the modules of a merged product; its parameters are those of the module that it stands for."""

    def __init__(self, linear: nn.Linear, product: MergedProduct, index: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._original = (linear,)  # in a tuple, so that it is no child
        self.product = product
        self._index = index

    def forward(self, hidden: Tensor) -> Tensor:
        part = self.product.take(self._index, hidden)
        if part is not None:
            return part
        if self.product.quantized is not None:
            return self.product.parts(hidden)[self._index]
        return functional.linear(hidden, self.weight, self.bias)


class FusedRMSNorm(nn.Module):
    """torch's own RMSNorm with the parameter of the module that it stands for.

    Args:
        scale: what the normalized input is multiplied by, where that is not the parameter itself.
    """

    def __init__(self, norm: nn.Module, epsilon: float, scale: Tensor | None = None) -> None:
        super().__init__()
        weight = getattr(norm, "weight", None)
        self.weight = weight if isinstance(weight, nn.Parameter) else None
        self.train(norm.training)
        self._original = (norm,)
        self._epsilon = epsilon
        self._scale = scale

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale = self.weight if self._scale is None else self._scale
        size = hidden_states.shape[-1:]
        if scale is None or scale.dtype == hidden_states.dtype:
            return functional.rms_norm(hidden_states, size, scale, self._epsilon)
        wide = functional.rms_norm(hidden_states.to(scale.dtype), size, scale, self._epsilon)
        return wide.to(hidden_states.dtype)


@dataclass(frozen=True)
class _Swap:
    """A child of a module and what replaces it."""

    parent: nn.Module
    name: str
    original: nn.Module
    fused: nn.Module


class Fusions:
    """The fusions that a model allows. They are off until `enable`.

    Args:
        model: in eval mode, with the weights that it will run with.
        probe: one forward of the model, a few tokens, to its logits.
    """

    def __init__(self, model: nn.Module, probe: Callable[[], Tensor]) -> None:
        self.notes: list[str] = []
        """What was left out and why, for the user."""
        self._on = False
        self._failures: Counter[str] = Counter()
        self._merged: list[tuple[MergedProduct, list[_Swap]]] = []
        with torch.no_grad():
            self._norms = list(self._find_norms(model, next(model.parameters()).dtype))
            shared = Counter(id(m.weight) for m in model.modules() if isinstance(m, nn.Linear))
            for parent in list(model.modules()):
                for names in _SIBLINGS:
                    self._merge(parent, names, shared)
        self._try_out(probe)
        self.notes += [f"{what} ({count} of them)" for what, count in self._failures.items()]

    @property
    def count(self) -> int:
        """Operations that become fewer: merged products and fused norms."""
        return len(self._merged) + len(self._norms)

    def enable(self, on: bool) -> None:
        """Put the fused modules in place, or the original ones."""
        if on == self._on:
            return
        self._on = on
        for swap in self._swaps():
            setattr(swap.parent, swap.name, swap.fused if on else swap.original)

    def release(self) -> None:
        """Forget what a forward left: parts of a product that no module took."""
        if self._on:
            for product, _ in self._merged:
                product.release()

    def _swaps(self) -> Iterator[_Swap]:
        yield from self._norms
        for _, swaps in self._merged:
            yield from swaps

    def _find_norms(self, model: nn.Module, dtype: torch.dtype) -> Iterator[_Swap]:
        for parent in model.modules():
            for name, norm in parent.named_children():
                if type(norm).__name__.endswith("RMSNorm") and not isinstance(norm, nn.RMSNorm | FusedRMSNorm):
                    fused = self._fuse_norm(norm, dtype)
                    if fused is not None:
                        yield _Swap(parent, name, norm, fused)

    def _fuse_norm(self, norm: nn.Module, dtype: torch.dtype) -> FusedRMSNorm | None:
        """The replacement that agrees: scale w (Llama), 1 + w (Gemma), or none."""
        kind = f"fused RMSNorm was left out for {type(norm).__name__}"
        weight = getattr(norm, "weight", None)
        epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        if not isinstance(epsilon, float) or (weight is not None and weight.dim() != 1):
            self._failures[f"{kind}: it has no epsilon, or a weight of another shape"] += 1
            return None
        like = torch.empty(64, dtype=dtype) if weight is None else weight.detach()
        # Down to where the epsilon decides, up to where it vanishes.
        magnitudes = torch.tensor([1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0])[:, None]
        hidden = (_random(6, len(like)) * magnitudes).to(like.device, dtype)
        expected = _call(norm, hidden)
        candidates = [FusedRMSNorm(norm, epsilon)]
        if weight is not None:
            # Gemma adds the 1 in float32.
            offset = 1.0 + like.to(torch.promote_types(like.dtype, torch.float32))
            candidates.append(FusedRMSNorm(norm, epsilon, offset))
        differences = [_difference(fused(hidden), expected, by_row=True) for fused in candidates]
        smallest = min(differences)
        if not smallest <= _RELATIVE[dtype]:
            self._failures[f"{kind}: its output differs by {smallest:.1g}, at most {_RELATIVE[dtype]:g}"] += 1
            return None
        return candidates[differences.index(smallest)]

    def _merge(self, parent: nn.Module, names: tuple[str, ...], shared: Counter[int]) -> None:
        children = [getattr(parent, name, None) for name in names]
        linears = [child for child in children if isinstance(child, nn.Linear) and not isinstance(child, MergedLinear)]
        if len(linears) != len(names) or not _mergeable(linears):
            return
        kind = f"merged {' + '.join(names)} was left out for {type(parent).__name__}"
        if any(shared[id(linear.weight)] > 1 for linear in linears):
            self._failures[f"{kind}: another module uses the same weight"] += 1
            return
        sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        bias = torch.cat([linear.bias.detach() for linear in linears]) if linears[0].bias is not None else None
        hidden = _random(5, linears[0].in_features).to(weight.device, weight.dtype)
        parts = torch.split(functional.linear(hidden, weight, bias), sizes, dim=-1)
        worst = max(_difference(part, _call(m, hidden)) for part, m in zip(parts, linears, strict=True))
        if not worst <= _RELATIVE[weight.dtype]:
            self._failures[f"{kind}: its output differs by {worst:.1g}, at most {_RELATIVE[weight.dtype]:g}"] += 1
            return
        for index, linear in enumerate(linears):
            linear.weight.data = torch.split(weight, sizes)[index]
            if bias is not None:
                linear.bias.data = torch.split(bias, sizes)[index]
        product = MergedProduct(weight, bias, sizes)
        swaps = [
            _Swap(parent, name, linear, MergedLinear(linear, product, index))
            for index, (name, linear) in enumerate(zip(names, linears, strict=True))
        ]
        self._merged.append((product, swaps))

    def _try_out(self, probe: Callable[[], Tensor]) -> None:
        """Run the whole model both ways; take back what its code does not go with."""
        if not self.count:
            return
        expected = probe()
        try:
            self.enable(True)
            difference = _difference(probe(), expected)
            failure = f"its logits differ by {difference:.1g}" if not difference <= _MODEL[expected.dtype] else None
        except Exception as error:  # whatever the model's code runs into
            failure = f"the model does not run with them ({type(error).__name__}: {str(error).splitlines()[0]})"
        pending = [swaps for product, swaps in self._merged if product.pending]
        self.release()
        self.enable(False)
        if failure:
            self.notes.append(f"fusions were left out: {failure}")
            self._merged, self._norms = [], []
        for swaps in pending if not failure else []:
            names = " + ".join(swap.name for swap in swaps)
            what = f"merged {names} was left out for {type(swaps[0].parent).__name__}"
            self._failures[f"{what}: they do not all read the same input"] += 1
        self._merged = [(product, swaps) for product, swaps in self._merged if swaps not in pending]


def restore(model: nn.Module) -> None:
    """Put the original modules back, whoever replaced them."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, MergedLinear | FusedRMSNorm | PackedLinear | QuantizedLinear):
                setattr(parent, name, child._original[0])


def _mergeable(linears: Sequence[nn.Linear]) -> bool:
    """Plain floating-point weights of one type, for inputs of one size, all with a bias or none."""
    first = linears[0]
    return first.weight.dtype in _RELATIVE and all(
        isinstance(linear.weight, nn.Parameter)
        and not hasattr(linear.weight, "__tensor_flatten__")  # quantized: several tensors that act as one
        and linear.in_features == first.in_features
        and linear.weight.dtype == first.weight.dtype
        and linear.weight.device == first.weight.device
        and (linear.bias is None) == (first.bias is None)
        for linear in linears
    )


def _random(rows: int, size: int) -> Tensor:
    """Seeded noise [rows, size]; drawn on the CPU, so that every device checks with the same."""
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(0))


def _call(module: nn.Module, hidden: Tensor) -> Tensor | None:
    """The module's output; None where it wants more than one input or gives more than one output."""
    try:
        output = module(hidden)
    except Exception:  # somebody else's code
        return None
    return output if isinstance(output, Tensor) else None


def _difference(ours: Tensor, reference: Tensor | None, *, by_row: bool = False) -> float:
    """Largest difference as a share of the largest reference (of each row); infinite where types or shapes differ."""
    if reference is None or ours.dtype != reference.dtype or ours.shape != reference.shape:
        return float("inf")
    gap, scale = (ours - reference).abs().double(), reference.abs().double()
    if by_row:
        return float((gap.amax(dim=-1) / scale.amax(dim=-1).clamp_min(1e-30)).max())
    return float(gap.max() / scale.max().clamp_min(1e-30))
