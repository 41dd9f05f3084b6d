"""Ctrl-C and SIGTERM: during a reply, between replies, once and twice."""

from __future__ import annotations

import signal

import pytest

from agentmem.cli import signals
from agentmem.cli.signals import Interrupts, Stopped


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


@pytest.fixture
def cancel() -> Counter:
    """Stands for an agent's `cancel`."""
    return Counter()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_between_replies_a_signal_stops_the_command(
    cancel: Counter, signum: signal.Signals, code: int
) -> None:
    with Interrupts(cancel, stop_on_interrupt=False), pytest.raises(Stopped) as stopped:
        signal.raise_signal(signum)
    assert stopped.value.exit_code == code
    assert cancel.calls == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_with_nobody_there_a_signal_ends_the_reply_and_then_the_command(
    cancel: Counter, signum: signal.Signals
) -> None:
    with Interrupts(cancel, stop_on_interrupt=True) as interrupts:
        with interrupts.answering():
            signal.raise_signal(signum)
        assert cancel.calls == 1
        assert interrupts.stopped is not None
        assert interrupts.stopped.exit_code == 128 + signum


def test_at_a_terminal_one_interrupt_ends_the_reply_only(cancel: Counter) -> None:
    with Interrupts(cancel, stop_on_interrupt=False) as interrupts:
        with interrupts.answering():
            signal.raise_signal(signal.SIGINT)
        assert (cancel.calls, interrupts.stopped) == (1, None)


def test_at_a_terminal_two_interrupts_end_the_command(cancel: Counter) -> None:
    with Interrupts(cancel, stop_on_interrupt=False) as interrupts:
        with interrupts.answering():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert interrupts.stopped is not None and interrupts.stopped.exit_code == 130


def test_two_interrupts_far_apart_are_two_single_ones(
    cancel: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "TWICE_SECONDS", 0.0)
    with Interrupts(cancel, stop_on_interrupt=False) as interrupts:
        with interrupts.answering():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert (cancel.calls, interrupts.stopped) == (2, None)


def test_who_asks_again_does_not_wait_for_the_reply(cancel: Counter) -> None:
    with Interrupts(cancel, stop_on_interrupt=True) as interrupts:
        with pytest.raises(Stopped), interrupts.answering():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        assert cancel.calls == 1


def test_a_reply_that_began_after_the_signal_is_cancelled_too(cancel: Counter) -> None:
    with Interrupts(cancel, stop_on_interrupt=True) as interrupts, interrupts.answering():
        interrupts.renew()
        assert cancel.calls == 0
        signal.raise_signal(signal.SIGTERM)
        interrupts.renew()
        assert cancel.calls == 2


def test_the_former_handlers_come_back(cancel: Counter) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts(cancel, stop_on_interrupt=True):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
