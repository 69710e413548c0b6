"""What stands in a model where a linear layer stood, and multiplies by quantized weights."""

from __future__ import annotations

from torch import Tensor, nn

from inferdoc.engine.quantized_weights import QuantizedWeight


class QuantizedLinear(nn.Module):
    """Stands for a linear layer, whose parameters it keeps: code that asks for their type finds them."""

    def __init__(self, linear: nn.Linear, weight: QuantizedWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._original = (linear,)  # in a tuple, so that it is no child
        self.product = QuantizedProduct(weight, linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.product(hidden)


class QuantizedProduct:
    """Quantized weights as a function of activations [..., in]."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self.weight = weight
        self._bias = bias

    def __call__(self, hidden: Tensor) -> Tensor:
        product = self.weight.multiply(hidden.reshape(-1, hidden.shape[-1]))
        product = product.view(*hidden.shape[:-1], product.shape[-1])
        return product if self._bias is None else product + self._bias
