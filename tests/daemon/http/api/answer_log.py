"""What servers answered, by operation of the document."""

from __future__ import annotations

from aiohttp import web

from zerotoolsd.http.api.openapi.openapi_document import document

NOBODY_READS_IT = 499
"""The status of an answer to a client that is gone; it is never sent."""


class AnswerLog:
    """The statuses that servers answered to each operation."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}

    def watch(self, app: web.Application) -> None:
        """Note what `app` answers; call it before the application starts."""
        app.on_response_prepare.append(self._note)

    async def _note(self, request: web.Request, response: web.StreamResponse) -> None:
        resource = request.match_info.route.resource
        if resource is None or response.status == NOBODY_READS_IT:
            return
        method = "get" if request.method == "HEAD" else request.method.lower()
        tree = document()["paths"][resource.canonical].get(method)
        if tree is not None:
            self.seen.setdefault(tree["operationId"], set()).add(response.status)

    def undocumented(self) -> dict[str, set[int]]:
        """Return the statuses that the document does not have, by `operationId`."""
        listed = documented_statuses()
        return {name: more for name, found in self.seen.items() if (more := found - listed[name])}


def documented_statuses() -> dict[str, set[int]]:
    """Return the statuses of each operation of the document, by `operationId`."""
    return {
        tree["operationId"]: {int(status) for status in tree["responses"]}
        for operations in document()["paths"].values()
        for tree in operations.values()
    }
