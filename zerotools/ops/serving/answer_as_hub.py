"""Serve the files to clients that have the token: under their names, and as a repository for
huggingface_hub.

    /                                               the files, as JSON
    /model.safetensors                              a file
    /api/models/NAMESPACE/NAME[/revision/REVISION]  the repository's files
    /api/models/NAMESPACE/NAME/tree/REVISION        the repository's files with their sizes
    /NAMESPACE/NAME/resolve/REVISION/FILE           a file

Any namespace and revision are accepted, because the server has one model of one revision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from zerotools.ops.serving.http_answers import (
    ReadRequest,
    ServedAnswer,
    ServedModel,
    of_file,
    of_text,
)

_HUB_ERRORS = {"EntryNotFound": "Entry not found", "RepoNotFound": "Repository not found"}


def plain_answer(model: ServedModel, asked: ReadRequest) -> ServedAnswer:
    """Return the response to a request that is neither signed nor refused: the list of the files, a
    response in the format of the Hub's API, or a file.
    """
    path = [word for word in asked.path if word]
    if not path:
        return _json(_listing(model))
    if path[:2] == ["api", "models"]:
        return _of_hub(model, path[2:])
    if "resolve" in path[1:3]:
        return _resolved(model, path, asked)
    name = "/".join(path)
    if name in model.files:
        return of_file(model, model.files[name], asked)
    return _absent(model, f"the file {name} does not exist")


def _listing(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "revision": model.revision,
        "files": [
            {"name": each.name, "size": each.size, "etag": each.etag.strip('"')}
            for each in model.files.values()
        ],
    }


def _of_hub(model: ServedModel, words: Sequence[str]) -> ServedAnswer:
    for length in (1, 2):  # a repository with and without a namespace
        if len(words) >= length and words[length - 1] == model.name:
            return _about(model, "/".join(words[:length]), words[length:])
    return _absent(model, f"the model is called {model.name}")


def _about(model: ServedModel, repository: str, words: Sequence[str]) -> ServedAnswer:
    if words and words[0] == "tree":
        return _json(
            [
                {"type": "file", "path": each.name, "size": each.size, "oid": each.etag.strip('"')}
                for each in model.files.values()
            ]
        )
    if words and words[0] != "revision":
        return _absent(model, f"this server has no {words[0]} for a repository")
    return _json(
        {
            "id": repository,
            "modelId": repository,
            "sha": model.revision,
            "private": True,
            "tags": [],
            "siblings": [{"rfilename": name} for name in model.files],
        }
    )


def _resolved(model: ServedModel, path: Sequence[str], asked: ReadRequest) -> ServedAnswer:
    at = path.index("resolve", 1)
    name = "/".join(path[at + 2 :])
    if path[at - 1] != model.name:
        return _absent(model, f"the model is called {model.name}")
    if name not in model.files:
        return _absent(model, f"the file {name} does not exist", "EntryNotFound")
    return of_file(model, model.files[name], asked, {"X-Repo-Commit": model.revision})


def _json(value: Any) -> ServedAnswer:
    return of_text(HTTPStatus.OK, json.dumps(value, indent=1) + "\n", "application/json")


def _absent(model: ServedModel, why: str, code: str = "RepoNotFound") -> ServedAnswer:
    """Return the response for a file or repository that does not exist. `code` is an error code
    that clients of the Hub know."""
    answer = of_text(HTTPStatus.NOT_FOUND, f"{why}; the path / lists all files\n")
    # No word of the request is in a header, because it could begin another header.
    headers = {**answer.headers, "X-Error-Code": code, "X-Error-Message": _HUB_ERRORS[code]}
    if code == "EntryNotFound":
        headers["X-Repo-Commit"] = model.revision
    return ServedAnswer(answer.status, headers, answer.body)
