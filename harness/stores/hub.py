"""The Hugging Face Hub on loopback, in a small server for clients that read.

    with HubServer({"secret": {"team/model"}}) as hub:
        repo = hub.add(HubRepo("team/model", private=True))
        sha = repo.commit({"config.json": b"{}", "model.safetensors": data})

The server answers the requests with which `huggingface_hub` lists and downloads files: the info of
a repository at a revision, pages of its tree (`Link`), paths-info, refs, whoami, and HEAD and GET
of `resolve`, with ranges, `ETag` and `X-Repo-Commit`. For a small file, `resolve` redirects (307)
to another path of the Hub. For a large file, it redirects (302) to a signed link on another server,
with `X-Linked-Etag` and `X-Linked-Size`. That other server refuses an expired link, and a request
with a token, as S3 and CDNs do.

A client that may not see a repository gets the status that the Hub would send: 401 without a token,
404 with a token, and 401 with an unknown token. For the files of a gated repository, it is 401 or
403.

The server has what huggingface_hub 2.4 uses. It accepts no commits over HTTP. It has no Xet
(without `X-Xet-Hash`, clients use plain HTTP), no pull requests, and no rate limits.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode

from harness.stores.content import Content, answer_of
from harness.stores.hub_repos import HubFile, HubRepo, folder_entry
from harness.stores.loopback import Asked, Connection, LoopbackServer

_API = re.compile(
    r"/api/(model|dataset|space)s/([^/]+(?:/(?!revision/|tree/|refs$|paths-info/)[^/]+)?)"
    r"(?:/(revision|tree|paths-info|refs)(?:/([^/]+)(?:/(.*))?)?)?"
)
_RESOLVE = re.compile(r"/(?:(dataset|space)s/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)")
_CACHE = re.compile(r"/api/resolve-cache/(model|dataset|space)s/([^/]+(?:/[^/]+)?)/(\w{40})/(.+)")


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class HubServer(LoopbackServer):
    """A Hub with the repositories that were added.

    `tokens` maps each token to the names of the private repositories that it may read. Links to
    large files begin with `cdn_url`, which is the URL of `cdn`, or of a proxy in front of it.
    """

    def __init__(
        self, tokens: Mapping[str, set[str]] | None = None, page_entries: int = 1000
    ) -> None:
        super().__init__()
        self.tokens = dict(tokens or {})
        self.page_entries = page_entries
        self.repos: dict[tuple[str, str], HubRepo] = {}
        self.cdn = LargeFiles()
        self.cdn_url = self.cdn.url

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of a client. The caller adds `HF_TOKEN`."""
        return client_env(self.url)

    def add(self, repo: HubRepo) -> HubRepo:
        """Add a repository, and return it. Commits may be added later."""
        self.repos[repo.kind, repo.name] = repo
        return repo

    def __enter__(self) -> Self:
        self.cdn.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.cdn.__exit__()

    def handle(self, asked: Asked, connection: Connection) -> None:
        try:
            if asked.path == "/api/whoami-v2":
                if self._token(asked) is None:
                    raise _Refused(401, "", "Invalid username or password.")
                _send(connection, {"type": "user", "name": "somebody", "orgs": []})
            elif found := _CACHE.fullmatch(asked.path):
                self._resolve(asked, connection, found, is_cache=True)
            elif found := _RESOLVE.fullmatch(asked.path):
                self._resolve(asked, connection, found, is_cache=False)
            elif found := _API.fullmatch(asked.path):
                self._tell(asked, connection, found)
            else:
                raise _Refused(404, "", "Sorry, we can't find the page you are looking for.")
        except _Refused as refusal:
            told = {"X-Error-Code": refusal.code} if refusal.code else {}
            told["X-Error-Message"] = str(refusal)
            _send(connection, {"error": str(refusal)}, told, refusal.status)

    def _token(self, asked: Asked) -> str | None:
        said = asked.headers.get("authorization")
        if said is None:
            return None
        token = said.removeprefix("Bearer ")
        if token not in self.tokens:
            raise _Refused(401, "", "Invalid credentials in Authorization header")
        return token

    def _repo(self, asked: Asked, kind: str, name: str, *, files: bool) -> HubRepo:
        token = self._token(asked)
        repo = self.repos.get((kind, name))
        may = token is not None and name in self.tokens[token]
        if repo is None or (repo.private and not may):
            if token is None:
                raise _Refused(401, "RepoNotFound", "Invalid username or password.")
            raise _Refused(404, "RepoNotFound", "Repository not found")
        if files and repo.gated and not may:
            text = f"Access to {kind} {name} is restricted."
            raise _Refused(401 if token is None else 403, "GatedRepo", text)
        return repo

    def _resolve(
        self, asked: Asked, connection: Connection, found: re.Match[str], *, is_cache: bool
    ) -> None:
        kind, name, revision, path = found.groups()
        kind = kind or "model"
        repo = self._repo(asked, kind, name, files=True)
        sha = _sha(repo, unquote(revision))
        file = repo.commits[sha].get(unquote(path))
        told = {"X-Repo-Commit": sha}
        if file is None:
            told |= {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            connection.send(404, told, b"Entry not found")
        elif is_cache:
            status, headers, body = answer_of(Content(file.data, file.etag, 0.0, told), asked)
            connection.send(status, headers, body)
        elif file.is_large:
            link = self.cdn.link(self.cdn_url, file)
            linked = {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": file.etag}
            told |= {**linked, "Location": link, "Accept-Ranges": "bytes"}
            connection.send(302, told, f"Found. Redirecting to {link}".encode())
        else:
            where = f"/api/resolve-cache/{kind}s/{name}/{sha}/{path}"
            told |= {"ETag": file.etag, "Location": where}
            connection.send(307, told, f"Temporary Redirect. Redirecting to {where}".encode())

    def _tell(self, asked: Asked, connection: Connection, found: re.Match[str]) -> None:
        kind, name, what, revision, path = found.groups()
        repo = self._repo(asked, kind, name, files=False)
        if what == "refs":
            of = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
            refs: dict[str, Any] = {
                word: [
                    {"name": ref, "ref": f"refs/{part}/{ref}", "targetCommit": sha}
                    for ref, sha in each.items()
                ]
                for word, (part, each) in of.items()
            }
            _send(connection, {**refs, "converts": []})
            return
        sha = _sha(repo, unquote(revision or "main"))
        told = {"X-Repo-Commit": sha}
        if what == "tree":
            self._tree(asked, connection, repo.tree(sha, unquote(path or ""), _says(asked)), told)
        elif what == "paths-info":
            _send(connection, [*_paths_info(repo, sha, asked)], told)
        else:
            files = repo.commits[sha].values()
            blobs = asked.query.get("blobs", "").lower() in ("1", "true")
            said = {"_id": "0", "id": name, "sha": sha, "private": repo.private}
            said |= {"gated": "auto" if repo.gated else False, "disabled": False}
            _send(connection, {**said, "siblings": [each.sibling(blobs) for each in files]}, told)

    def _tree(
        self,
        asked: Asked,
        connection: Connection,
        entries: list[dict[str, Any]] | None,
        told: dict[str, str],
    ) -> None:
        if entries is None:
            raise _Refused(404, "EntryNotFound", "The path does not exist on the revision")
        query = asked.query
        start = int(query.get("cursor", 0))
        end = start + min(int(query.get("limit", self.page_entries)), self.page_entries)
        if end < len(entries):
            host = asked.headers.get("host", "")
            following = f"http://{host}{asked.path}?{urlencode({**query, 'cursor': end})}"
            told["Link"] = f'<{following}>; rel="next"'
        _send(connection, entries[start:end], told)


class LargeFiles(LoopbackServer):
    """The server of the Hub's large files. It sends a file if the link has not expired."""

    def __init__(self) -> None:
        super().__init__()
        self._links: dict[str, HubFile] = {}

    def link(self, base: str, file: HubFile) -> str:
        """Return a new link to `file`. It begins with `base`, the URL of this server or of a
        proxy.
        """
        path = f"/repos/{file.sha256}"
        query = f"X-Signature={len(self._links)}&X-Issued={time.time_ns()}"
        self._links[f"{path}?{query}"] = file
        return f"{base}{path}?{query}"

    def expire_links(self) -> None:
        """Make all links expire that were made before this call."""
        self._links.clear()

    def handle(self, asked: Asked, connection: Connection) -> None:
        file = self._links.get(asked.target)
        if "authorization" in asked.headers:
            connection.send(400, {}, b"<Error><Code>InvalidArgument</Code></Error>")
        elif file is None:
            connection.send(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        else:
            connection.send(*answer_of(Content(file.data, file.etag, 0.0), asked))


def client_env(url: str) -> dict[str, str]:
    """Return the environment variables with which `huggingface_hub` uses only the Hub at `url`."""
    return {
        "HF_ENDPOINT": url,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }


def _sha(repo: HubRepo, revision: str) -> str:
    if (sha := repo.sha_of(revision)) is None:
        raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return sha


def _says(asked: Asked) -> bool:
    return asked.query.get("recursive", "").lower() in ("1", "true")


def _paths_info(repo: HubRepo, sha: str, asked: Asked) -> list[dict[str, Any]]:
    text = asked.body.decode("utf-8")
    paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
    files = repo.commits[sha]
    told = [files[path].in_tree() for path in paths if path in files]
    folders = {p for p in paths if any(each.startswith(f"{p}/") for each in files)}
    return told + [folder_entry(path) for path in sorted(folders)]


def _send(
    connection: Connection, told: Any, headers: Mapping[str, str] | None = None, status: int = 200
) -> None:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    connection.send(status, {**kind, **(headers or {})}, json.dumps(told).encode())
