"""The product of a frozen matrix with an adapter, and its gradients, with few tensors of the activations' size.

Rows of W by part (q, k, v, or all), with a share p dropped, s = scale / (1 - p) and a mask m of the numbers kept:

    u = A (m x)              y = W x,  then y += s B u                  in place, by part
    du = s B^T dy            dx = m (A^T du),  then dx += W^T dy        in place
    dA = du (m x)^T          dB = dy (s u)^T

Backward keeps x, which neighbours with the same input share, u, which has the adapter's rank, and m, of one byte a
number; it computes m x again. Autograd would keep m and m x in the type of x, and write B u, its multiple, their sum
with W x, and both terms of dx to memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from jobs.engines.native.mixed_precision import arithmetic


class Shape(NamedTuple):
    """The shape of a product, and what makes its operands."""

    spans: tuple[tuple[int, int], ...]
    """First row of W, and the one after the last, of each part that has an adapter."""
    scale: float
    """Factor of the adapter's result."""
    plain: Callable[[Tensor], Tensor] | None
    """Returns W (out, in) of what is stored; None: that is W."""
    made: Callable[..., Tensor] | None
    """Returns x of the tensors that backward keeps in its place; None: it keeps x."""
    copies: bool
    """W x stays as it is, and the adapter's result is added to a copy: selective checkpointing keeps W x."""


class AdaptedProduct(torch.autograd.Function):
    """y = W x + bias + scale B A x, with W and bias frozen."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd gives no keywords)
        ctx: Any, x: Tensor, stored: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, kept: Tensor | None,
        shape: Shape, *given: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return y (..., out) of x (..., in); A (rank x parts, in), B (rows, rank), mask `kept` as x.

        `given` are what shape.made takes.
        """
        x = x.to(arithmetic(x))
        ctx.shape, (narrow, wide) = shape, factors(a, b, shape, x.dtype)
        u = F.linear((x if kept is None else x * kept).flatten(0, -2), narrow)
        ctx.save_for_backward(None if given else x, stored, a, b, kept, u, *given)
        weight = matrix(stored, shape, x.dtype)
        y = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        y = y.clone() if shape.copies else y
        flat = y.view(-1, y.shape[-1])
        for (begin, end), part, of_part in zip(shape.spans, wide, u.chunk(len(wide), 1), strict=True):
            flat[:, begin:end].addmm_(of_part, part.T, alpha=shape.scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, A and B."""
        x, stored, a, b, kept, u, *given = ctx.saved_tensors
        shape, (narrow, wide) = ctx.shape, factors(a, b, ctx.shape, u.dtype)
        dy = gradients[0].flatten(0, -2)
        of_parts = [dy[:, begin:end] for begin, end in shape.spans]
        du = torch.cat([own @ part for own, part in zip(of_parts, wide, strict=True)], 1) * shape.scale
        scaled = (u * shape.scale).chunk(len(wide), 1)
        of_b = torch.cat([own.T @ part for own, part in zip(of_parts, scaled, strict=True)])
        if shape.made is not None:
            x = shape.made(*given).to(u.dtype)
        of_a = du.T @ (x if kept is None else x * kept).flatten(0, -2)
        # If it was computed again, it is freed before the gradient of its size exists.
        del x
        of_x = None
        if needs_gradient_of_x(ctx):
            of_x = du @ narrow
            if kept is not None:
                of_x *= kept.flatten(0, -2)
            of_x = of_x.addmm_(dy, matrix(stored, shape, u.dtype)).view(*gradients[0].shape[:-1], narrow.shape[1])
        return of_x, None, None, of_a.to(a.dtype), of_b.to(b.dtype), None, None, *(None for _ in given)


def needs_gradient_of_x(ctx: Any) -> bool:
    """Return whether this backward pass needs the gradient of x.

    A zero-bubble schedule calls backward again for the gradients of A and B alone. Then autograd drops that of x, but
    does not say so in needs_input_grad.
    """
    if torch.compiler.is_compiling() or not ctx.needs_input_grad[0]:
        return bool(ctx.needs_input_grad[0])
    node, _ = ctx.next_functions[0]
    # Of leaves, such as the input of a pipeline stage that begins without a norm, torch cannot tell.
    is_leaf = hasattr(node, "variable")
    return is_leaf or bool(torch._C._will_engine_execute_node(node))  # noqa: SLF001 (torch has no public name for it)


def factors(a: Tensor, b: Tensor, shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Sequence[Tensor]]:
    """Return A, and B by part, in a type."""
    return a.to(dtype), b.to(dtype).split([end - begin for begin, end in shape.spans])


def matrix(stored: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return W in a type."""
    return (stored if shape.plain is None else shape.plain(stored)).to(dtype)
