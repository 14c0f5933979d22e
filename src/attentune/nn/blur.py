"""The blur slot: a Gaussian blur along the tokens, with symmetric padding at the ends of each text.

Source: SESAME (Su and Cheng 2019), section 3.2. Kernel, window and symmetric padding are those of its released program,
except that a text is mirrored at its last real token, so that the batch's padding has no effect.

The blur multiplies the tokens by a matrix K (T, T). K is symmetric, so blurring the attention probabilities P in
both directions (a 2-D convolution, K P K) equals blurring the values before attention and the context after it.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLUR_PLACES = ("none", "context", "value", "scores")
LEARNABLE = ("no", "layer", "head")


def gaussian_kernel(sigma: Tensor, size: int) -> Tensor:
    """Compute the kernel exp(-x^2 / 2 sigma^2) at x = -(size-1)/2 .. (size-1)/2, normalised to sum 1."""
    half = (size - 1) // 2
    x_k = torch.arange(-half, half + 1, device=sigma.device, dtype=torch.float32)
    # A softmax of the exponents is the same and does not underflow for a tiny sigma.
    return (-(x_k**2) / (2.0 * sigma.float()[..., None] ** 2)).softmax(dim=-1)


def mirrored_places(mask_BT: Tensor, size: int) -> Tensor:
    """Compute the positions, (B, T, size), of the window around each token, with symmetric padding.

    They are mirrored at the first and last real token, which is repeated; real tokens must be contiguous. The window of
    a padding token holds only itself.
    """
    length = mask_BT.shape[1]
    half = (size - 1) // 2
    count_B11 = mask_BT.sum(dim=1)[:, None, None].clamp(min=1)
    first_B11 = mask_BT.long().argmax(dim=1)[:, None, None]
    position_1T1 = torch.arange(length, device=mask_BT.device)[None, :, None]
    offsets_k = torch.arange(-half, half + 1, device=mask_BT.device)
    # Symmetric mirroring has the period 2 n: 0 .. n-1, n-1 .. 0, again.
    place_BTk = (position_1T1 - first_B11 + offsets_k) % (2 * count_B11)
    place_BTk = torch.where(place_BTk < count_B11, place_BTk, 2 * count_B11 - 1 - place_BTk) + first_B11
    return torch.where(mask_BT[:, :, None], place_BTk, position_1T1)


def blur_matrix(kernel: Tensor, places_BTk: Tensor) -> Tensor:
    """Build the blur matrix K, whose row t holds the kernel at the positions of token t's window.

    It is (B, T, T) of a kernel (k,), and (B, H, T, T) of kernels (H, k), one a head.
    """
    batch, length, size = places_BTk.shape
    if kernel.ndim == 1:
        matrix = kernel.new_zeros(batch, length, length)
        return matrix.scatter_add(2, places_BTk, kernel.expand(batch, length, size))
    heads = len(kernel)
    matrix = kernel.new_zeros(batch, heads, length, length)
    places = places_BTk[:, None].expand(batch, heads, length, size)
    return matrix.scatter_add(3, places, kernel[None, :, None].expand(batch, heads, length, size))


def apply_blur(matrix: Tensor, values_BTD: Tensor) -> Tensor:
    """Multiply the tokens by the blur matrix; with one matrix per head, each head's features by its own."""
    matrix = matrix.to(values_BTD.dtype)
    if matrix.ndim == 3:
        return torch.matmul(matrix, values_BTD)
    batch, length, size = values_BTD.shape
    heads = matrix.shape[1]
    split_BHTd = values_BTD.view(batch, length, heads, size // heads).transpose(1, 2)
    return torch.matmul(matrix, split_BHTd).transpose(1, 2).reshape(batch, length, size)


class GaussianBlur(nn.Module):
    """Makes the blur matrices of an encoder's layers."""

    def __init__(self, *, size: int, sigma: float, layers: int, heads: int, learnable: str) -> None:
        super().__init__()
        self.size, self.sigma = size, sigma
        shape = {"no": None, "layer": (layers,), "head": (layers, heads)}[learnable]
        self.raw_sigma = None if shape is None else nn.Parameter(torch.full(shape, raw_of(sigma)))

    def reset_parameters(self) -> None:
        """Reset every learned sigma to its initial value."""
        if self.raw_sigma is not None:
            nn.init.constant_(self.raw_sigma, raw_of(self.sigma))

    def sigmas(self) -> Tensor | None:
        """Return the learned standard deviations, (layers,) or (layers, heads); None if they are not learned."""
        return None if self.raw_sigma is None else F.softplus(self.raw_sigma.float()) + _SMALLEST

    def matrices(self, mask_BT: Tensor) -> list[Tensor]:
        """Build the matrix of each blurred layer; a single one for all layers if sigma is not learned."""
        places_BTk = mirrored_places(mask_BT, self.size)
        sigmas = self.sigmas()
        if sigmas is None:
            kernel = gaussian_kernel(torch.tensor(self.sigma, device=mask_BT.device), self.size)
            return [blur_matrix(kernel, places_BTk)]
        return [blur_matrix(kernel, places_BTk) for kernel in gaussian_kernel(sigmas, self.size)]


# Keeps a learned sigma above 0.
_SMALLEST = 1e-3


def raw_of(sigma: float) -> float:
    """Invert softplus(raw) + smallest sigma."""
    above = max(sigma - _SMALLEST, 1e-6)
    return above + math.log(-math.expm1(-above))
