"""Describes the purpose of a request in one word, for any store. Faults and counts use this
word.
"""

from __future__ import annotations

from harness.stores.loopback import Asked

_S3: tuple[tuple[str, frozenset[str], str], ...] = (
    ("GET", frozenset({"list-type"}), "list"),
    ("GET", frozenset({"uploadId"}), "list parts"),
    ("GET", frozenset({"uploads"}), "list uploads"),
    ("POST", frozenset({"uploads"}), "begin"),
    ("PUT", frozenset({"partNumber", "uploadId"}), "part"),
    ("POST", frozenset({"uploadId"}), "complete"),
    ("DELETE", frozenset({"uploadId"}), "abort"),
    ("POST", frozenset({"delete"}), "delete"),
)
"""For S3 and the XML API of GCS: method, required fields of the query, kind."""
_AZURE = {
    ("GET", "list"): "list",
    ("PUT", "block"): "part",
    ("PUT", "blocklist"): "complete",
    ("GET", "blocklist"): "list parts",
    ("POST", "batch"): "delete",
}
"""For Azure: method and the field `comp`."""
_PLAIN = {"GET": "get", "HEAD": "head", "PUT": "put", "DELETE": "delete", "POST": "post"}


def kind_of(asked: Asked) -> str:
    """Return the kind of a request.

    The kinds are: list, list parts, list uploads, begin, part, complete, abort, copy, delete, put,
    head, get, range (a GET of some bytes). The Hub also has info, tree, refs and paths. Azure has
    no requests that begin or abort an upload.
    """
    fields, method = asked.query, asked.method
    for of_method, needed, kind in _S3:
        if method == of_method and needed <= fields.keys():
            return kind
    if (found := _AZURE.get((method, fields.get("comp", "")))) is not None:
        return found
    if asked.path.startswith("/api/") and not asked.path.startswith("/api/resolve-cache/"):
        return _of_hub(asked)
    if method == "PUT" and any(name.endswith("-copy-source") for name in asked.headers):
        return "copy"
    if method == "GET" and ("range" in asked.headers or "x-ms-range" in asked.headers):
        return "range"
    return _PLAIN.get(method, method)


def _of_hub(asked: Asked) -> str:
    words = asked.path.split("/")
    if "tree" in words:
        return "tree"
    if "paths-info" in words:
        return "paths"
    return "refs" if words[-1] == "refs" else "info"
