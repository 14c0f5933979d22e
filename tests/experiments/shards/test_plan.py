"""The number of shards that is chosen for a number of rows."""

import pytest

from attentune.data.readers.table import BLOCK_ROWS
from attentune.experiments.shards.plan import SHARD_ROWS, default_shards


@pytest.mark.parametrize(
    ("rows", "processes", "expected"),
    [
        (0, 2, 0),
        (1, 2, 1),
        (SHARD_ROWS, 1, 1),
        (SHARD_ROWS + 1, 1, 2),
        (300_000, 2, 6),  # five shards would leave a process idle for a fifth of the time
        (1_000_000, 2, 16),
        (SHARD_ROWS, 16, 16),
        (SHARD_ROWS - 1, 16, 1),  # 15 whole blocks for 16 processes
        (SHARD_ROWS, 17, 1),
    ],
)
def test_default_shards_are_a_multiple_of_the_processes(rows: int, processes: int, expected: int) -> None:
    assert default_shards(rows, processes) == expected
    assert expected <= max(1, -(-rows // BLOCK_ROWS))
