"""The storage of a queue: Optuna's journal file in the comparison's folder, or a database."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from attentune.errors import AttentuneError, CheckpointError, ConfigError, StorageError
from attentune.experiments.comparison.manifest import LOCKS
from attentune.io.files import storage_errors
from attentune.io.locks import FileLock

JOURNAL_FILE = "queue.journal"
HEARTBEAT_S = 60
# Number of missing heartbeats after which a run is given to another worker.
_MISSED = 3
# SQLite's timeout for a locked database.
_BUSY_S = 60
# Two machines that start together may both try to create the tables.
_TRIES = 5
# What Optuna raises on invalid lines of a journal.
_OF_A_JOURNAL = (ValueError, LookupError, AssertionError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class StorageConfig:
    """Where a queue is stored, and the folder of its runs.

    Attributes:
        folder: the comparison's folder.
        folder_id: the folder's id, equal on all machines that share the folder.
        storage: the URL of a database; None for the journal file in the folder.
        study: the study's name in the database.
        heartbeat_s: seconds between heartbeats, with a database.
    """

    folder: str
    folder_id: str
    storage: str | None = None
    study: str = "compare"
    heartbeat_s: int = HEARTBEAT_S

    @property
    def grace_s(self) -> int:
        """Seconds without a heartbeat after which a run is given to another worker."""
        return _MISSED * self.heartbeat_s

    @property
    def journal(self) -> Path:
        """The journal file."""
        return Path(self.folder) / JOURNAL_FILE


class _JournalLock:
    """Lock of the journal file; frees a killed worker's lock and removes the line that it was writing."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(journal.parent / LOCKS / "journal")

    def acquire(self) -> bool:
        self._lock.free()  # an interrupt may have left it held, which would be a deadlock
        self._lock.take()
        content = self._journal.read_bytes()
        if not content.endswith(b"\n"):
            with self._journal.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._lock.free()


def open_storage(storage_config: StorageConfig) -> BaseStorage:
    """Open the storage of a queue.

    Raises:
        ConfigError: the URL cannot be used.
        StorageError: the database cannot be reached.
    """
    if storage_config.storage is None:
        backend = JournalFileBackend(str(storage_config.journal), lock_obj=_JournalLock(storage_config.journal))  # type: ignore[arg-type]
        return JournalStorage(backend)
    for tries_left in reversed(range(_TRIES)):
        try:
            return _open_database(storage_config.storage, storage_config)
        except StorageError:
            if tries_left == 0:
                raise
            time.sleep(0.5)
    raise AssertionError("not reached")


def _open_database(url: str, storage_config: StorageConfig) -> BaseStorage:
    is_sqlite = url.startswith("sqlite")
    try:
        storage = without_warnings(
            RDBStorage,
            _with_driver(url),
            engine_kwargs={"connect_args": {"timeout": _BUSY_S}} if is_sqlite else {"pool_pre_ping": True},
            heartbeat_interval=storage_config.heartbeat_s,
            grace_period=storage_config.grace_s,
        )
        if is_sqlite:
            _serialize_transactions(storage.engine)
        return storage
    except ImportError as error:
        raise ConfigError(
            f"--storage {masked_url(url)}: its driver is not installed ({error.__cause__ or error}); for PostgreSQL:"
            " pip install 'attentune[postgresql]'"
        ) from error
    except Exception as error:
        if isinstance(error, sqlalchemy.exc.ArgumentError):  # includes NoSuchModuleError
            raise ConfigError(
                f"--storage {masked_url(url)}: is no URL of a database, expected postgresql://user@host/database or"
                " sqlite:///file.db."
            ) from error
        raise _unreachable(url, error) from error


def _serialize_transactions(engine: sqlalchemy.Engine) -> None:
    """Make SQLite's transactions exclusive from their first statement on.

    Optuna first checks that a trial is waiting and then takes it. SQLite has no row locks, so without this two workers
    could take the same trial.
    """

    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # Python's default starts the transaction too late

    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sqlalchemy.event.listen(engine, "connect", connect)
    sqlalchemy.event.listen(engine, "begin", begin)
    engine.dispose()


def _with_driver(url: str) -> str:
    """Return the URL with the installed driver if it names none; SQLAlchemy's default is psycopg2."""
    has_new = importlib.util.find_spec("psycopg") is not None
    has_old = importlib.util.find_spec("psycopg2") is not None
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url) if has_new and not has_old else url


def masked_url(url: str) -> str:
    """Return a URL without its password."""
    return re.sub(r"(//[^:/@]*):[^@/]*@", r"\1:***@", url)


@contextlib.contextmanager
def queue_storage_errors(storage_config: StorageConfig) -> Iterator[None]:
    """Convert the exceptions of a storage to errors with a message for the user.

    Raises:
        CheckpointError: the journal is damaged.
        StorageError: the disk refused, or the database cannot be reached.
    """
    if storage_config.storage is not None:
        try:
            yield
        except AttentuneError:
            raise
        except Exception as error:
            cause = _of_database(error)
            if cause is None:
                raise
            raise _unreachable(storage_config.storage, cause) from error
        return
    with storage_errors(storage_config.journal):
        try:
            yield
        except AttentuneError:
            raise
        except _OF_A_JOURNAL as error:
            raise CheckpointError(
                f"{storage_config.journal}: is damaged ({repr(error)[:200]}). Delete it while no worker runs; what is"
                " recorded stays, and the same command goes on."
            ) from error


def _of_database(error: BaseException | None) -> Exception | None:
    """Return the first database exception among the causes of an error; None if there is none."""
    while error is not None:
        if isinstance(error, StorageInternalError) or type(error).__module__.startswith("sqlalchemy"):
            return error if isinstance(error, Exception) else None
        error = error.__cause__ or error.__context__
    return None


def _unreachable(url: str, error: Exception) -> StorageError:
    reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    return StorageError(
        f"--storage {masked_url(url)}: cannot be used: {reason[0]} Check that the database is there and lets you in;"
        " the same command goes on."
    )


def without_warnings(action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function that Optuna marks as experimental, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return action(*arguments, **options)
