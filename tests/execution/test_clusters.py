"""Ray and SLURM do what the processes of one machine do.

SLURM's jobs are submitit's local processes, and in the slow tests those of a SLURM with one node, where its packages
are installed (Debian: slurmctld, slurmd, slurm-client, munge).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from attentune.errors import ConfigError
from attentune.execution import make_executor
from attentune.execution.executor import Executor, ExecutorOptions, WorkerKilled
from attentune.runs.driver import ComparisonStopped, Driver
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import RecordStore
from attentune.training.run_folder import StopRequest
from helpers import tasks
from helpers.comparisons import is_alive, wait_for
from helpers.slurm import running_slurm
from helpers.tasks import RUNS, names, noted, sleeping_plan

pytestmark = pytest.mark.integration
LOCAL, ONE_NODE = "submitit", "slurm with one node"
OPTIONS = {
    "ray": ExecutorOptions("ray", jobs=2),
    LOCAL: ExecutorOptions("slurm", jobs=2, slurm=(("cluster", "local"), ("timeout_min", 5))),
    ONE_NODE: ExecutorOptions("slurm", jobs=2, slurm=(("timeout_min", 5),)),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine, for all tests."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("submitit")
    with pytest.MonkeyPatch.context() as patched:
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patched.setenv("PYTHONPATH", os.pathsep.join(paths))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def one_node(tmp_path_factory) -> Iterator[None]:
    with running_slurm(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture(params=["ray", LOCAL, pytest.param(ONE_NODE, marks=pytest.mark.slow)])
def executor(request, cluster, tmp_path) -> Iterator[Executor]:
    if request.param == ONE_NODE:
        request.getfixturevalue("one_node")
    made = make_executor(OPTIONS[request.param], tmp_path / "comparison/logs", [])
    yield made
    made.shutdown(wait_s=30)


def test_tasks_return_raise_or_are_killed(executor):
    assert executor.size == 2
    futures = executor.submit(tasks.echo, [[number] for number in range(3)])
    failing, dying = executor.submit(tasks.fail, [()])[0], executor.submit(tasks.die, [()])[0]
    assert [future.result(120) for future in futures] == [0, 1, 2]
    with pytest.raises(Exception, match="this task fails"):
        failing.result(120)
    with pytest.raises(WorkerKilled, match="killed"):
        dying.result(120)
    assert executor.room(0) == 2


def test_a_stop_request_lets_tasks_save(executor, tmp_path):
    (future,) = executor.submit(tasks.until_stopped, [[str(tmp_path / "one")]])
    wait_for(lambda: (tmp_path / "one").exists() and (tmp_path / "one").read_text(), "start")
    executor.request_stop()
    assert future.result(120) == "saved"
    assert (tmp_path / "one").read_text() == "saved"


def test_a_comparison_is_recorded_once_although_a_worker_is_killed(executor, tmp_path):
    folder, runs = tmp_path / "comparison", RUNS[:3]
    store, killed = RecordStore(folder), []

    class Killing(ComparisonProgress):
        def update(self, *arguments: object, **options: object) -> None:
            began = noted(folder, "began")
            if not killed and began:
                lines = [line.split() for line in (folder / "log").read_text().splitlines()]
                killed.append(int(lines[0][2]))
                os.kill(killed[0], signal.SIGKILL)

    Driver(sleeping_plan(folder, runs, seconds=1.0), store, executor, Killing(quiet=True)).run(StopRequest())
    assert {record.run.name for record in store.records()} == names(runs)
    assert {record.status for record in store.records()} == {"done"}
    assert not is_alive(killed[0])
    assert noted(folder, "ended") == dict.fromkeys(names(runs), 1)
    assert not (folder / "runs").exists()


def test_a_stopped_comparison_goes_on(executor, tmp_path):
    folder, runs, stop = tmp_path / "comparison", RUNS[:3], StopRequest()
    store = RecordStore(folder)

    class Stopping(ComparisonProgress):
        def ended(self, *arguments: object) -> None:
            stop.requested = True

    plan = sleeping_plan(folder, runs)
    with pytest.raises(ComparisonStopped):
        Driver(plan, store, executor, Stopping(quiet=True)).run(stop)
    assert 1 <= len(store.records()) <= 3
    again = make_executor(ExecutorOptions(jobs=1), folder / "logs", [{"training.use_cpu": True}])
    Driver(sleeping_plan(folder, runs), store, again, ComparisonProgress(quiet=True)).run(StopRequest())
    assert {record.run.name for record in store.records()} == names(runs)


def test_what_a_cluster_lacks_is_told(cluster, tmp_path):
    with pytest.raises(ConfigError, match=r"each run needs 64 CPU, but the cluster has 2 CPU"):
        make_executor(ExecutorOptions("ray", cpus_per_run=64), tmp_path, [])
    with pytest.raises(ConfigError, match=r"each run needs 0.5 GPU, but the cluster has .* 0 GPU"):
        make_executor(ExecutorOptions("ray", gpus_per_run=0.5), tmp_path, [])
    with pytest.raises(ConfigError, match=r"(?s)--executor slurm: .* on a machine that has sbatch"):
        make_executor(ExecutorOptions("slurm", slurm=(("no_such_parameter", 1),)), tmp_path, [])


@pytest.mark.slow
def test_a_node_that_leaves_takes_no_run_with_it(cluster, tmp_path):
    """Two nodes, as processes of this machine; the second is killed while it has runs."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        leaving = nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        folder, runs = tmp_path / "comparison", RUNS[:6]
        executor = make_executor(ExecutorOptions("ray"), folder / "logs", [])
        assert executor.size == 2
        left: list[bool] = []

        class Leaving(ComparisonProgress):
            def update(self, *arguments: object, **options: object) -> None:
                if not left and len(noted(folder, "began")) == 2:
                    left.append(True)
                    nodes.remove_node(leaving, allow_graceful=False)

        Driver(sleeping_plan(folder, runs, seconds=2.0), RecordStore(folder), executor, Leaving(quiet=True)).run(
            StopRequest()
        )
        assert left
        assert {record.run.name for record in RecordStore(folder).records()} == names(runs)
        assert {record.status for record in RecordStore(folder).records()} == {"done"}
    finally:
        ray.shutdown()
        nodes.shutdown()
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
