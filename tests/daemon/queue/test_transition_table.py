"""The transition table itself."""

from __future__ import annotations

from zerotools.jobs.states import QUEUED, STATES, TERMINAL
from zerotoolsd.queue.transition_table import EVENTS, TRANSITIONS


def test_the_table_uses_only_known_names() -> None:
    assert {state for state, _ in TRANSITIONS} <= set(STATES)
    assert set(TRANSITIONS.values()) <= set(STATES)
    assert {event for _, event in TRANSITIONS} == set(EVENTS)


def test_nothing_follows_a_terminal_state() -> None:
    assert not [state for state, _ in TRANSITIONS if state in TERMINAL]


def test_every_state_is_reached_from_the_queue_and_ends() -> None:
    reached = {QUEUED}
    for _ in STATES:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
    assert reached == set(STATES)
    ends = set(TERMINAL)
    for _ in STATES:
        ends |= {state for (state, _), to in TRANSITIONS.items() if to in ends}
    assert ends == set(STATES)
