"""The batcher: what is joined, what waits, what is refused, and whom a failure reaches."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from attentune.serving.engine import Batcher, QueueFullError


class Doubler:
    """Doubles numbers, notes the batches, and waits in a batch until it may go on."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        if any(item < 0 for item in items):
            raise ValueError(f"negative: {min(items)}")
        return [2 * item for item in items]


def run(
    test: Callable[[Batcher[int, int], Doubler], Coroutine[Any, Any, None]], *, is_open: bool = True, **options: Any
) -> Doubler:
    """Run a test with a batcher whose batches are computed meanwhile."""

    async def all_of_it() -> Doubler:
        compute = Doubler(is_open=is_open)
        batcher = Batcher(compute, **{"max_batch": 4, "max_wait_s": 0, "max_queue": 100} | options)
        task = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(10):
                await test(batcher, compute)
        finally:
            task.cancel()
        return compute

    return asyncio.run(all_of_it())


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_that_wait_are_joined_and_each_gets_its_own_results() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        first = asyncio.create_task(batcher.submit([1]))
        await settle()  # is computed alone, and the others wait
        others = [asyncio.create_task(batcher.submit(items)) for items in ([2, 3], [4], [5, 6, 7], [8])]
        await settle()
        assert batcher.waiting == 7
        compute.gate.set()
        assert await first == [2]
        assert await asyncio.gather(*others) == [[4, 6], [8], [10, 12, 14], [16]]

    assert run(test, is_open=False).batches == [[1], [2, 3, 4, 5], [6, 7, 8]]


def test_a_request_larger_than_a_batch_is_divided_and_those_behind_it_join() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        large, small = batcher.submit(list(range(10))), batcher.submit([99])
        assert await asyncio.gather(large, small) == [[2 * n for n in range(10)], [198]]

    assert run(test).batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 99]]


def test_the_first_item_waits_for_others_but_not_in_a_full_batch() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        early = asyncio.create_task(batcher.submit([1]))
        await asyncio.sleep(0.05)
        assert compute.batches == []
        late = asyncio.create_task(batcher.submit([2]))
        assert [await early, await late] == [[2], [4]]
        assert loop.time() - began >= 0.2
        began = loop.time()
        assert await batcher.submit([1, 2, 3, 4]) == [2, 4, 6, 8]
        assert loop.time() - began < 0.2

    assert run(test, max_wait_s=0.2).batches == [[1, 2], [1, 2, 3, 4]]


def test_a_failing_request_fails_alone() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        answers = await asyncio.gather(*map(batcher.submit, ([1], [-5, 3], [2])), return_exceptions=True)
        assert (answers[0], answers[2]) == ([2], [4])
        assert isinstance(answers[1], ValueError)
        assert str(answers[1]) == "negative: -5"
        assert await batcher.submit([7]) == [14]  # and the batcher goes on

    assert run(test).batches == [[1, -5, 3, 2], [1], [-5, 3], [2], [7]]


def test_after_its_first_part_has_failed_the_rest_of_a_request_is_not_computed() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        answers = await asyncio.gather(batcher.submit([-1, *range(9)]), batcher.submit([5]), return_exceptions=True)
        assert isinstance(answers[0], ValueError)
        assert answers[1] == [10]

    assert run(test).batches == [[-1, 0, 1, 2], [5]]


def test_a_cancelled_request_leaves_the_queue_and_disturbs_nobody() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        at_work = asyncio.create_task(batcher.submit([1]))
        await settle()
        gone, stays = asyncio.create_task(batcher.submit([2, 3])), asyncio.create_task(batcher.submit([4]))
        await settle()
        gone.cancel()
        at_work.cancel()
        await settle()
        assert batcher.waiting == 1
        compute.gate.set()
        assert await stays == [8]
        assert gone.cancelled()
        assert at_work.cancelled()

    assert run(test, is_open=False).batches == [[1], [4]]


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        tasks = [asyncio.create_task(batcher.submit([1]))]
        await settle()
        tasks += [asyncio.create_task(batcher.submit([n])) for n in range(5)]
        await settle()
        with pytest.raises(QueueFullError) as caught:
            await batcher.submit([1, 2])
        assert (caught.value.waiting, caught.value.retry_after_s) == (5, 1)
        tasks.append(asyncio.create_task(batcher.submit([9])))  # one more has room
        await settle()
        assert batcher.waiting == 6
        compute.gate.set()
        assert (await asyncio.gather(*tasks))[-1] == [18]
        assert await batcher.submit([1, 2]) == [2, 4]

    run(test, is_open=False, max_queue=6)


def test_finished_batches_are_reported() -> None:
    seen: list[tuple[int, bool]] = []

    async def test(batcher: Batcher[int, int], compute: Doubler) -> None:
        await batcher.submit([1, 2, 3])

    run(test, on_batch=lambda items, seconds: seen.append((items, 0 <= seconds < 5)))
    assert seen == [(3, True)]
