"""Names and groups, of lists that may not answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from zerotoolsd.service.user_lookup import KNOWN_SECONDS, UserDirectory, who_is
from zerotoolsd.users.rights import Caller


class Lists:
    """What the machine's lists of users say, and how often they were asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[int] = []
        self.answers = True

    async def ask(self, seconds: float, look: Callable[..., Any], uid: int) -> Any:
        self.asked.append(uid)
        await asyncio.sleep(0)
        if not self.answers:
            raise TimeoutError
        return {"name": "anna", "groups": ["admins"]}


def test_who_is() -> None:
    found = who_is(os.geteuid())
    assert found["name"]
    assert found["groups"]
    assert who_is(2**31 + 4711) == {"name": None, "groups": []}


def test_a_name_is_asked_for_once_a_while_and_by_one_of_many() -> None:
    async def story() -> None:
        lists = Lists()
        people = UserDirectory(lists.ask, lambda: lists.now)
        anna = Caller(uid=7, name="anna", groups=frozenset({"admins"}))
        first = asyncio.create_task(people.find(7))
        others = [asyncio.create_task(people.find(7)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()  # who asked first is gone, and the others get the answer
        assert await asyncio.gather(*others) == [anna] * 3
        assert await people.names([7, 7]) == {7: "anna"}
        assert lists.asked == [7]
        lists.now += KNOWN_SECONDS
        await people.find(7)
        assert lists.asked == [7, 7]

    asyncio.run(story())


def test_lists_that_do_not_answer_take_rights_away_and_give_none() -> None:
    async def story() -> None:
        lists = Lists()
        people = UserDirectory(lists.ask, lambda: lists.now)
        await people.find(7)
        lists.answers, lists.now = False, KNOWN_SECONDS
        assert await people.find(7) == Caller(uid=7, name="anna")
        assert await people.find(8) == Caller(uid=8)
        assert await UserDirectory().find(7) == Caller(uid=7)

    asyncio.run(story())
