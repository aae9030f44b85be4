"""A `JobPage` in memory."""

from __future__ import annotations

from typing import Any


class FakePage:
    """Gives links that lead nowhere."""

    URL = "http://127.0.0.1:1/link/a-secret_token"

    def __init__(self) -> None:
        self.uids: list[int] = []

    async def link(self, uid: int) -> dict[str, Any]:
        self.uids.append(uid)
        return {"url": self.URL, "port": 1, "expires_seconds": 120.0}

    def end(self, uid: int) -> int:
        return self.uids.count(uid)
