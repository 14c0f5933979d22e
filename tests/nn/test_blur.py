"""The blur against convolutions written as plain loops over one text at a time, ends mirrored step by step."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attentune.nn.blur import GaussianBlur, apply_blur, blur_matrix, gaussian_kernel, mirrored_places

Rows = list[list[float]]
SIZES = (1, 3, 5, 7)


def kernel_by_loop(sigma: float, size: int) -> list[float]:
    heights = [math.exp(-((place - (size - 1) / 2) ** 2) / (2 * sigma**2)) for place in range(size)]
    return [height / sum(heights) for height in heights]


def mirror(place: int, count: int) -> int:
    """Where a step over an end leads: back by as much, the end itself counting twice; again until it is inside."""
    while not 0 <= place < count:
        place = -1 - place if place < 0 else 2 * count - 1 - place
    return place


def blur_by_loop(rows: Rows, kernel: list[float]) -> Rows:
    """The convolution of one text, a row a token, without padding."""
    half = len(kernel) // 2
    return [
        [
            sum(share * rows[mirror(t + k - half, len(rows))][d] for k, share in enumerate(kernel))
            for d in range(len(rows[0]))
        ]
        for t in range(len(rows))
    ]


def blur_table_by_loop(table: Rows, kernel: list[float]) -> Rows:
    """The k x k convolution of a square table, mirrored at all four sides."""
    half, count = len(kernel) // 2, len(table)
    steps = [(j, k, a * b) for j, a in enumerate(kernel) for k, b in enumerate(kernel)]
    return [
        [
            sum(share * table[mirror(s + j - half, count)][mirror(t + k - half, count)] for j, k, share in steps)
            for t in range(count)
        ]
        for s in range(count)
    ]


def masks(*spans: tuple[int, int], length: int) -> torch.Tensor:
    """(B, T): True from each row's first to before its last."""
    places_T = torch.arange(length)
    return torch.stack([(places_T >= first) & (places_T < last) for first, last in spans])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(kernel: list[float]) -> torch.Tensor:
    return torch.tensor(kernel, dtype=torch.float64)


@given(st.floats(0.05, 20), st.sampled_from(SIZES))
def test_a_kernel_is_the_formula_and_sums_to_1(sigma: float, size: int) -> None:
    kernel_k = gaussian_kernel(torch.tensor(sigma), size)
    assert kernel_k.dtype == torch.float32
    assert kernel_k.tolist() == pytest.approx(kernel_by_loop(sigma, size), abs=1e-5)
    assert kernel_k.sum().item() == pytest.approx(1, abs=1e-6)
    assert torch.equal(kernel_k, kernel_k.flip(0))


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("size", [3, 7])
def test_the_gradient_to_sigma_is_that_of_finite_differences(sigma: float, size: int) -> None:
    chosen = torch.tensor(sigma, requires_grad=True)
    for place in range(size):
        (gradient,) = torch.autograd.grad(gaussian_kernel(chosen, size)[place], chosen)
        above, below = (kernel_by_loop(sigma + step, size)[place] for step in (1e-5, -1e-5))
        assert gradient.item() == pytest.approx((above - below) / 2e-5, rel=1e-3, abs=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(SIZES),
    st.floats(0.1, 5),
)
def test_a_blurred_batch_is_the_plain_loop_over_each_text(texts, size, sigma):
    """Texts of 0 to 9 tokens, shorter than the window too, padded on the left or the right with other numbers."""
    spans = [(9 - count, 9) if on_left else (0, count) for count, on_left in texts]
    mask_BT, values_BTD = masks(*spans, length=9), 9 * random(len(texts), 9, 3)
    before = values_BTD.clone()
    kernel = kernel_by_loop(sigma, size)
    blurred_BTD = apply_blur(blur_matrix(exact(kernel), mirrored_places(mask_BT, size)), values_BTD)
    for row, (first, last) in enumerate(spans):
        if first < last:
            expected = exact(blur_by_loop(values_BTD[row, first:last].tolist(), kernel))
            torch.testing.assert_close(blurred_BTD[row, first:last], expected)
    assert torch.equal(values_BTD, before)


def test_a_kernel_a_head_blurs_that_heads_features_alone() -> None:
    sigmas_H = torch.tensor([0.01, 0.5, 2.0])
    mask_BT, values_BTD = masks((0, 5), (2, 5), length=5), random(2, 5, 6)
    places_BTk = mirrored_places(mask_BT, 3)
    matrix_BHTT = blur_matrix(gaussian_kernel(sigmas_H, 3), places_BTk)
    blurred_BTD = apply_blur(matrix_BHTT, values_BTD)
    assert matrix_BHTT.shape == (2, 3, 5, 5)
    for head, sigma in enumerate(sigmas_H):
        one_BTT = blur_matrix(gaussian_kernel(sigma, 3), places_BTk)
        torch.testing.assert_close(matrix_BHTT[:, head], one_BTT, rtol=1e-6, atol=1e-9)
        share = slice(2 * head, 2 * head + 2)
        torch.testing.assert_close(blurred_BTD[..., share], apply_blur(one_BTT, values_BTD[..., share]))
    torch.testing.assert_close(blurred_BTD[..., :2], values_BTD[..., :2])
    assert (blurred_BTD[..., 2:] - values_BTD[..., 2:]).abs().amax() > 0.1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_blurring_values_and_result_is_the_tables_2d_convolution(size: int, count: int) -> None:
    """The identity behind `scores`: K (P (K V)) = (k x k convolution of P, mirrored at its ends) V."""
    kernel = kernel_by_loop(0.9, size)
    probabilities_TT, values_TD = random(count, count, seed=1).softmax(dim=-1), random(count, 3, seed=2)
    matrix_BTT = blur_matrix(exact(kernel), mirrored_places(masks((0, count), length=count), size))
    ours_TD = apply_blur(matrix_BTT, probabilities_TT @ apply_blur(matrix_BTT, values_TD[None]))[0]
    expected_TD = exact(blur_table_by_loop(probabilities_TT.tolist(), kernel)) @ values_TD
    torch.testing.assert_close(ours_TD, expected_TD, atol=1e-12, rtol=1e-12)
    if size > 1 and count > 1:
        assert (ours_TD - probabilities_TT @ values_TD).abs().max() > 1e-3


@pytest.mark.parametrize(("learnable", "shape"), [("layer", (2,)), ("head", (2, 3))])
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.3, 0.5, 4.0])
def test_a_learned_sigma_starts_where_it_is_told_to(learnable: str, shape: tuple[int, ...], sigma: float) -> None:
    blur = GaussianBlur(size=3, sigma=sigma, layers=2, heads=3, learnable=learnable)
    assert [name for name, _ in blur.named_parameters()] == ["raw_sigma"]
    torch.testing.assert_close(blur.sigmas(), torch.full(shape, sigma), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        blur.raw_sigma.add_(1.0)
    assert (blur.sigmas() > sigma + 1e-3).all()
    blur.reset_parameters()
    torch.testing.assert_close(blur.sigmas(), torch.full(shape, sigma), rtol=1e-4, atol=1e-6)


@given(st.floats(-1e6, 1e6))
def test_a_learned_sigma_stays_above_0_whatever_is_learned(raw: float) -> None:
    blur = GaussianBlur(size=3, sigma=0.5, layers=1, heads=2, learnable="head")
    torch.nn.init.constant_(blur.raw_sigma, raw)
    (matrix,) = blur.matrices(masks((0, 3), length=4))
    matrix.square().sum().backward()
    assert blur.sigmas().min() > 0
    assert matrix.isfinite().all()
    assert blur.raw_sigma.grad.isfinite().all()


@pytest.mark.parametrize("learnable", ["no", "layer", "head"])
def test_a_layers_matrix_is_that_of_its_sigmas(learnable: str) -> None:
    blur = GaussianBlur(size=5, sigma=0.5, layers=2, heads=3, learnable=learnable)
    mask_BT = masks((0, 6), (0, 2), length=6)
    if learnable != "no":
        with torch.no_grad():
            blur.raw_sigma.add_(torch.arange(blur.raw_sigma.numel()).view_as(blur.raw_sigma))
    sigmas = torch.full((1,), 0.5) if learnable == "no" else blur.sigmas()
    matrices = blur.matrices(mask_BT)
    assert (blur.sigmas() is None) == (learnable == "no") == (not list(blur.parameters()))
    for matrix, sigma in zip(matrices, sigmas, strict=True):
        expected = blur_matrix(gaussian_kernel(sigma, 5), mirrored_places(mask_BT, 5))
        torch.testing.assert_close(matrix, expected)
        assert matrix.shape == ((2, 3, 6, 6) if learnable == "head" else (2, 6, 6))


@pytest.mark.parametrize("learnable", ["layer", "head"])
def test_every_sigma_gets_a_gradient_from_its_own_layer_and_head_only(learnable: str) -> None:
    blur = GaussianBlur(size=3, sigma=0.5, layers=2, heads=3, learnable=learnable)
    values_BTD = random(2, 5, 6).float()
    matrices = blur.matrices(masks((0, 5), (0, 3), length=5))
    apply_blur(matrices[1], values_BTD)[..., 2:4].square().sum().backward()  # the second head's features
    gradient = blur.raw_sigma.grad
    expected = torch.zeros_like(gradient)
    expected[(1, 1) if learnable == "head" else (1,)] = 1.0
    assert torch.equal(gradient.abs() > 1e-3, expected.bool())
    assert torch.equal(gradient != 0, expected.bool())
