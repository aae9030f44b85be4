from __future__ import annotations

import asyncio

from zerotoolsd.http.api.authorization.per_user_lock import PerUserLock


def test_one_users_submits_wait_for_each_other_and_for_nobody_else() -> None:
    async def story() -> None:
        turns, go = PerUserLock(2), asyncio.Event()
        inside: list[int] = []

        async def submit(uid: int) -> None:
            async with turns.turn(uid):
                inside.append(uid)
                await go.wait()
                inside.remove(uid)

        annas = [asyncio.create_task(submit(7)) for _ in range(5)]
        bobs = asyncio.create_task(submit(8))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(inside) == [7, 7, 8]
        annas[4].cancel()
        go.set()
        await asyncio.gather(*annas, bobs, return_exceptions=True)
        assert (inside, turns._slots, turns._inside) == ([], {}, {})

    asyncio.run(story())
