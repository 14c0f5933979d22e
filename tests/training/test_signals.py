"""Stops are asked for, inside each other too."""

from __future__ import annotations

import os
import signal
import threading

import pytest

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
