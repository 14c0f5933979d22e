"""Wilson's interval of a share, against its formula."""

import math

import pytest

from attentune.stats.estimate import wilson_interval


@pytest.mark.parametrize(("successes", "rows"), [(0, 5), (1, 1), (7, 10), (180, 277), (277, 277)])
@pytest.mark.parametrize(("confidence", "z"), [(0.95, 1.959963984540054), (0.8, 1.2815515655446004)])
def test_it_is_where_the_share_lies_z_standard_errors_away(
    successes: int, rows: int, confidence: float, z: float
) -> None:
    """Each end is a share p that lies z of its own standard errors, sqrt(p (1 - p) / n), from the one seen."""
    share = successes / rows
    low, high = wilson_interval(successes, rows, confidence=confidence)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert abs(end - share) == pytest.approx(z * math.sqrt(end * (1 - end) / rows), abs=1e-9)
    assert high - low > 0
    if confidence == 0.95:
        assert wilson_interval(successes, rows) == (low, high)


def test_no_rows_have_no_interval() -> None:
    low, high = wilson_interval(0, 0)
    assert math.isnan(low)
    assert math.isnan(high)
