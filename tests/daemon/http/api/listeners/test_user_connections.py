from __future__ import annotations

import os
import socket

from zerotoolsd.http.api.listeners.user_connections import UserConnections

ME = os.geteuid()


def test_each_user_has_an_eighth_and_an_eighth_is_for_the_daemons_own() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        others = UserConnections(64, own=ME + 1) if ME else None
        own = UserConnections(64, own=ME)
        assert {own.enter(ours) for _ in range(1000)} == {(ME, None)}
        if others is None:
            return  # root has what there is, whosever the daemon is
        assert [others.enter(ours)[1] for _ in range(8)] == [None] * 8
        assert others.enter(ours) == (ME, f"uid {ME} has 8 connections already")
        others.leave(ME)
        assert others.enter(ours)[1] is None


def test_clients_by_tcp_are_two_users_together() -> None:
    shares = UserConnections(64)
    with socket.socket(socket.AF_INET) as link:
        assert [shares.enter(link)[1] for _ in range(16)] == [None] * 16
        assert shares.enter(link) == (None, "clients by TCP have 16 connections already")
        for _ in range(16):
            shares.leave(None)
        assert shares.enter(link)[1] is None


def test_all_others_together_leave_an_eighth() -> None:
    shares = UserConnections(8)
    with socket.socket(socket.AF_INET) as link:
        assert [shares.enter(link)[1] for _ in range(5)] == [None] * 4 + [
            "users have 4 connections already"
        ]
