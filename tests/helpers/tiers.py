"""Selects the cases of a full product of settings that the fast tier runs."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def diagonal(*factors: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Return a minimal set of combinations that contains every value of every factor at least once."""
    return {tuple(values[place % len(values)] for values in factors) for place in range(max(map(len, factors)))}


def integration_unless(is_fast: bool) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a case: none in the fast tier, otherwise `integration`."""
    return () if is_fast else (pytest.mark.integration,)


def leading(
    names: str, cases: Sequence[Any], *, fast: int = 1, ids: Sequence[str] | None = None
) -> pytest.MarkDecorator:
    """Parametrize a test: the first cases in the fast tier, the rest as integration tests."""
    many = "," in names
    params = [
        pytest.param(*(case if many else (case,)), marks=integration_unless(place < fast))
        for place, case in enumerate(cases)
    ]
    return pytest.mark.parametrize(names, params, ids=ids)


def covering(names: str, *factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over a full product: the diagonal in the fast tier, the rest as integration tests."""
    fast = diagonal(*factors)
    cases = [pytest.param(*case, marks=integration_unless(case in fast)) for case in product(*factors)]
    return pytest.mark.parametrize(names, cases)
