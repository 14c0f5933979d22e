"""Stops are asked for, inside each other too, and an interrupt at a bad moment leaves no lock behind."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from attentune.io.locks import FileLock
from attentune.training.signals import stop_on_signal


def test_the_first_signal_asks_and_the_second_ends():
    with stop_on_signal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_stop_asked_for_before_stops_what_begins_after():
    with stop_on_signal() as outer:
        os.kill(os.getpid(), signal.SIGINT)
        with stop_on_signal() as inner:
            assert inner.requested
        assert signal.getsignal(signal.SIGINT) is outer


def test_elsewhere_than_in_the_main_thread_nothing_is_caught():
    seen = []

    def look() -> None:
        with stop_on_signal() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    with stop_on_signal() as outer:
        outer.requested = True
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [(False, outer)]


def test_an_interrupt_while_a_lock_is_taken_leaves_it_free(tmp_path, monkeypatch):
    def interrupt(*arguments: object) -> int:
        raise KeyboardInterrupt

    lock = FileLock(tmp_path / "some.lock")
    with monkeypatch.context() as patched:
        patched.setattr("attentune.io.locks.os.ftruncate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock.take()
    assert not lock.is_held()
    assert FileLock(lock.path).take(wait=False)
