"""Links and sessions, by a clock that the test turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotoolsd.http.web.sessions import (
    LINK_SECONDS,
    LINKS_OF_USER,
    SAVE_SECONDS,
    SESSIONS_OF_USER,
    WebSession,
    WebSessions,
    digest_of,
)

IDLE = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1.7e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> WebSessions:
    return WebSessions(tmp_path / "s.json", IDLE, clock)


def again(sessions: WebSessions, clock: Clock) -> WebSessions:
    """Those of the next daemon."""
    return WebSessions(sessions._path, IDLE, clock)


def enter(sessions: WebSessions, uid: int = 5) -> str:
    found = sessions.redeem(sessions.link(uid))
    assert found is not None
    return found[0]


def use(sessions: WebSessions, cookie: str) -> WebSession | None:
    """What the page of this cookie does."""
    known = sessions.known([cookie])
    return sessions.find([cookie], known[0].secret) if known else None


def test_a_link_becomes_a_session_once(sessions: WebSessions) -> None:
    token = sessions.link(5)
    found = sessions.redeem(token)
    assert found is not None
    cookie, session = found
    assert session.uid == 5
    assert sessions.redeem(token) is None
    used = sessions.find([cookie], session.secret)
    assert used is not None
    assert (used.id, used.secret) == (session.id, session.secret)
    for other in ("", token, cookie[:-1], session.digest, session.id):
        assert sessions.known([other]) == []
        assert sessions.find([other], session.secret) is None
        assert sessions.find([cookie], other) is None


@pytest.mark.parametrize(("later", "works"), [(LINK_SECONDS - 1, True), (LINK_SECONDS, False)])
def test_a_link_is_for_a_short_time(
    sessions: WebSessions, clock: Clock, later: float, works: bool
) -> None:
    token = sessions.link(5)
    clock.now += later
    assert (sessions.redeem(token) is not None) is works


def test_a_calendar_that_was_set_back_makes_no_link_live_longer(
    sessions: WebSessions, clock: Clock
) -> None:
    token = sessions.link(5)
    clock.now -= 1e6
    assert sessions.redeem(token) is None


def test_a_session_ends_when_it_was_not_used_for_long(sessions: WebSessions, clock: Clock) -> None:
    cookie = enter(sessions)
    for _ in range(5):
        clock.now += IDLE - 1
        assert sessions.find([cookie], "0" * 64) is None
        assert use(sessions, cookie) is not None
    clock.now += IDLE
    assert use(sessions, cookie) is None
    assert sessions.live() == []


def test_sessions_outlive_the_daemon_and_links_do_not(sessions: WebSessions, clock: Clock) -> None:
    sessions.port = 8733
    cookie, token = enter(sessions), sessions.link(5)
    before = use(sessions, cookie)
    assert before is not None
    later = again(sessions, clock)
    after = use(later, cookie)
    assert after is not None
    assert (after.proof("00"), after.secret) == (before.proof("00"), before.secret)
    assert (later.port, later.realm) == (8733, sessions.realm)
    assert later.redeem(token) is None


def test_what_is_kept_opens_nothing(sessions: WebSessions) -> None:
    cookie = enter(sessions)
    text = sessions._path.read_text()
    assert cookie not in text
    assert digest_of(cookie) in text
    assert sessions._path.stat().st_mode & 0o077 == 0


def test_when_it_was_used_is_kept_now_and_then(sessions: WebSessions, clock: Clock) -> None:
    cookie = enter(sessions)
    clock.now += SAVE_SECONDS
    use(sessions, cookie)
    (kept,) = json.loads(sessions._path.read_text())["sessions"]
    assert kept["used"] == clock.now


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"port": "x", "realm": "ab", "sessions": []}',
        '{"port": 1, "realm": "a b;", "sessions": []}',
        '{"port": 1, "realm": "ab", "sessions": [{}]}',
        '{"port": 1, "realm": "ab", "sessions": [3]}',
        '{"port": 1, "realm": "ab", "sessions": {"a": 1}}',
        json.dumps(
            {
                "port": 1,
                "realm": "ab",
                "sessions": [{"digest": "a", "uid": 0, "key": "zz", "created": 1, "used": 2}],
            }
        ),
    ],
)
def test_a_damaged_file_opens_nothing(tmp_path: Path, clock: Clock, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    found = WebSessions(tmp_path / "s.json", IDLE, clock)
    assert (found.live(), found.port) == ([], None)
    enter(found)
    assert len(again(found, clock).live()) == 1


def test_a_file_that_cannot_be_written_ends_no_session(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    found = WebSessions(tmp_path / "missing" / "s.json", IDLE, clock)
    cookie = enter(found)
    assert use(found, cookie) is not None
    assert "cannot be stored" in caplog.text


def test_one_user_has_so_many_and_takes_none_from_others(sessions: WebSessions) -> None:
    others = enter(sessions, 6)
    cookies = [enter(sessions, 5) for _ in range(SESSIONS_OF_USER + 3)]
    alive = [use(sessions, cookie) is not None for cookie in cookies]
    assert alive == [False] * 3 + [True] * SESSIONS_OF_USER
    tokens = [sessions.link(5) for _ in range(LINKS_OF_USER + 2)]
    assert sessions.redeem(tokens[0]) is None
    assert sessions.redeem(tokens[-1]) is not None
    assert use(sessions, others) is not None


def test_sessions_of_one_user_are_ended(sessions: WebSessions, clock: Clock) -> None:
    mine, others, token = enter(sessions, 5), enter(sessions, 6), sessions.link(5)
    assert sessions.end_all(5) == 1
    assert sessions.redeem(token) is None
    assert use(sessions, mine) is None
    assert use(sessions, others) is not None
    assert [each.uid for each in again(sessions, clock).live()] == [6]


def test_proofs_differ_by_nonce_and_session(sessions: WebSessions) -> None:
    found: list[Any] = [use(sessions, enter(sessions)) for _ in range(2)]
    proofs = {each.proof(nonce) for each in found for nonce in ("aa", "ab")}
    assert len(proofs) == 4
    assert not proofs & {each.secret for each in found}
    assert sessions.named(found[0].id) is not None
    assert sessions.named("0" * 32) is None
