"""The driver of shards: what is missing is done, killed workers are replaced, bad rows do not stop the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from attentune.config.schema import DataConfig
from attentune.data.columns import Columns
from attentune.data.ranges import RowRange, RowSource
from attentune.data.readers.table import RowStart
from attentune.errors import CheckpointError, DataError, StorageError
from attentune.execution.executor import MAX_KILLS, WorkerKilled
from attentune.experiments.shards.driver import BadShards, ShardsStopped, run_shards
from attentune.experiments.shards.plan import PLAN_FILE, ShardPlan, ShardRequest, read_plan
from attentune.inference.predictor import TextsRead
from attentune.io.urls import OutputFolder
from attentune.training.signals import StopRequest

SHARDS = 6


class DirectExecutor:
    """Executes tasks at once; `fail` may raise instead."""

    size = 2

    def __init__(self, fail: Callable[[int, int], None] = lambda shard, time: None) -> None:
        self.calls: Counter[int] = Counter()
        self.most, self.is_shut_down = 0, False
        self._fail = fail

    def room(self, expected_bytes: int) -> int:
        return self.size

    def submit(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        self.most = max(self.most, len(calls))
        return [self._future(function, call) for call in calls]

    def _future(self, function: Callable[..., Any], call: Sequence[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls[call[1]] += 1
        try:
            self._fail(call[1], self.calls[call[1]])
            future.set_result(function(*call, stop=StopRequest()))
        except Exception as error:
            future.set_exception(error)
        return future

    def request_stop(self) -> None: ...

    def shutdown(self, *, wait_s: float | None = None) -> None:
        self.is_shut_down = True


@pytest.fixture
def output(tmp_path: Path) -> OutputFolder:
    return OutputFolder(str(tmp_path))


@pytest.fixture
def plan(output: OutputFolder) -> ShardPlan:
    source = RowSource("/data/rows.csv", ".csv", 100, "1")
    request = ShardRequest("predict", "/runs/a", "abc", (source,), DataConfig(), ("all",), "csv", {"precision": None})
    shards = tuple((RowRange(0, RowStart(10 * n, 100 * n, 10 * n + 2), 10),) for n in range(SHARDS))
    return ShardPlan(request, Columns("text", id="id"), ("id", "stars"), (10 * SHARDS,), shards)


def task(folder: str, shard: int, *, stop: StopRequest) -> TextsRead:
    (Path(folder) / f"part-{shard:05d}-of-{SHARDS:05d}.csv").write_text(str(shard))
    return TextsRead(10)


def run(output: OutputFolder, plan: ShardPlan, executor: Any, stop: StopRequest | None = None) -> list[tuple[int, int]]:
    written: list[tuple[int, int]] = []
    try:
        run_shards(
            task,
            output,
            plan,
            executor,
            stop=stop or StopRequest(),
            written=lambda shard, read: written.append((shard, read.rows)),
        )
    finally:
        assert executor.is_shut_down
    return written


def test_the_plan_is_read_as_it_was_written(output: OutputFolder, plan: ShardPlan) -> None:
    with output.write(PLAN_FILE) as stream:
        stream.write(plan.to_json().encode())
    assert read_plan(output) == plan
    (Path(output.path) / PLAN_FILE).write_text('{"format": 2, "block_rows": 1}')
    with pytest.raises(CheckpointError, match="is not the plan of shards of this version"):
        read_plan(output)


def test_missing_shards_are_done_in_order(output: OutputFolder, plan: ShardPlan) -> None:
    executor = DirectExecutor()
    task(output.path, 1, stop=StopRequest())
    (Path(output.path) / ".part-00002-of-00006.csv.1.tmp").write_text("half")
    assert sorted(run(output, plan, executor)) == [(shard, 10) for shard in (0, 2, 3, 4, 5)]
    assert plan.missing(output) == []
    assert executor.most <= executor.size
    again = DirectExecutor()
    assert run(output, plan, again) == []
    assert not again.calls


def test_a_shard_whose_worker_is_killed_is_repeated(output: OutputFolder, plan: ShardPlan) -> None:
    def fail(shard: int, time: int) -> None:
        if shard in (1, 4) and time < MAX_KILLS:
            raise WorkerKilled("killed by signal 9")

    executor = DirectExecutor(fail)
    run(output, plan, executor)
    assert plan.missing(output) == []
    assert executor.calls[1] == executor.calls[4] == MAX_KILLS


def test_a_shard_whose_workers_are_always_killed_ends_the_command(output: OutputFolder, plan: ShardPlan) -> None:
    def fail(shard: int, time: int) -> None:
        if shard == 1:
            raise WorkerKilled("killed by signal 9")

    executor = DirectExecutor(fail)
    message = "part-00001-of-00006.csv: its worker was killed 3 times (killed by signal 9)"
    with pytest.raises(CheckpointError, match=message.replace("(", r"\(").replace(")", r"\)")):
        run(output, plan, executor)
    assert executor.calls[1] == MAX_KILLS


def test_a_shard_whose_job_is_pre_empted_is_repeated(output: OutputFolder, plan: ShardPlan) -> None:
    times: Counter[int] = Counter()

    def pre_empted(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
        times[shard] += 1
        return None if shard == 2 and times[shard] < least else task(folder, shard, stop=stop)

    least, written = 5, []
    run_shards(
        pre_empted,
        output,
        plan,
        DirectExecutor(),
        stop=StopRequest(),
        written=lambda shard, rows: written.append(shard),
    )
    assert sorted(written) == list(range(SHARDS))
    assert times[2] == 5
    (Path(output.path) / plan.file_name(2)).unlink()
    least = 1000
    with pytest.raises(CheckpointError, match="part-00002-of-00006.csv: its worker was stopped 20 times"):
        run_shards(pre_empted, output, plan, DirectExecutor(), stop=StopRequest(), written=lambda *one: None)


def test_bad_rows_do_not_stop_the_other_shards(output: OutputFolder, plan: ShardPlan) -> None:
    def fail(shard: int, time: int) -> None:
        if shard in (1, 3):
            raise DataError("has no text here", path="rows.csv", line=10 * shard)

    with pytest.raises(BadShards) as caught:
        run(output, plan, DirectExecutor(fail))
    assert str(caught.value).splitlines()[:2] == ["rows.csv:10: has no text here", "rows.csv:30: has no text here"]
    assert "2 of the shards (1, 3) were not written" in str(caught.value)
    assert plan.missing(output) == [1, 3]


def test_what_concerns_all_shards_ends_the_command(output: OutputFolder, plan: ShardPlan) -> None:
    def fail(shard: int, time: int) -> None:
        raise StorageError("the disk is full")

    executor = DirectExecutor(fail)
    with pytest.raises(StorageError, match="the disk is full"):
        run(output, plan, executor)
    assert len(executor.calls) <= executor.size


def test_a_stop_request_ends_the_command(output: OutputFolder, plan: ShardPlan) -> None:
    stop = StopRequest()

    def fail(shard: int, time: int) -> None:
        stop.requested = shard >= 2

    with pytest.raises(ShardsStopped):
        run(output, plan, DirectExecutor(fail), stop)
    assert plan.missing(output) == [4, 5]


def test_a_stop_request_during_the_last_shard_ends_the_command(output: OutputFolder, plan: ShardPlan) -> None:
    stop = StopRequest()

    def stopped(folder: str, shard: int, *, stop: StopRequest) -> TextsRead | None:
        request.requested = shard == SHARDS - 1
        return None if request.requested else task(folder, shard, stop=stop)

    request = stop
    with pytest.raises(ShardsStopped):
        run_shards(stopped, output, plan, DirectExecutor(), stop=stop, written=lambda *one: None)
    assert plan.missing(output) == [SHARDS - 1]
