"""Reads a repository of the Hugging Face Hub in one revision.

huggingface_hub gives the token, the endpoint and the listing. Files are read in ranges from the
address that the Hub returns. For large files this may be the address of another server, which does
not get the token.

A revision is replaced by its commit at the first request, so that no file changes while it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from zerotools.core.errors import BadRequest, HostUnreachable, ZerotoolsError
from zerotools.io.stores.store_errors import CREDENTIALS, missing_library
from zerotools.io.stores.store_interface import FarDirectory, FarObject, directory_of

try:
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # they are its own
        build_hf_headers,
        http_backoff,
    )
except ImportError:
    raise missing_library("huggingface_hub") from None

_LINK_SECONDS = 240.0
_TRIES = 4
T = TypeVar("T")


class HubFiles:
    """The files of a model repository, as a `FarStore`."""

    lists_below = True

    def __init__(self, owner: str, repository: str) -> None:
        if owner in ("datasets", "spaces"):
            raise BadRequest(f"hf://{owner}/... holds no checkpoints; name hf://OWNER/MODEL")
        name, _, revision = repository.partition("@")
        self.url = f"hf://{owner}/{repository}"
        self._repository, self._revision = f"{owner}/{name}", unquote(revision) or None
        self._links: dict[str, tuple[str, float]] = {}

    @cached_property
    def _commit(self) -> str:
        api = HfApi()
        info = self._call(lambda: api.model_info(self._repository, revision=self._revision))
        return str(info.sha)

    @cached_property
    def _objects(self) -> list[FarObject]:
        commit = self._commit
        tree = self._call(
            lambda: list(HfApi().list_repo_tree(self._repository, recursive=True, revision=commit))
        )
        return [
            FarObject(each.path, each.size, each.lfs.sha256 if each.lfs else each.blob_id)
            for each in tree
            if isinstance(each, RepoFile)
        ]

    def directory(self, key: str) -> FarDirectory:
        return directory_of(key, self.below(key))

    def below(self, key: str) -> Iterator[FarObject]:
        start = f"{key}/" if key else ""
        return (each for each in self._objects if each.key.startswith(start))

    def head(self, key: str) -> FarObject | None:
        return next((each for each in self._objects if each.key == key), None)

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        for tried in range(1, _TRIES + 1):
            try:
                return self._call(lambda: self._range(found, begin, end))
            except EOFError as error:
                if tried == _TRIES:
                    raise HostUnreachable(
                        f"{self.url}/{found.key} cannot be read: {error}; run the command again"
                    ) from None
                time.sleep(0.1 * 2**tried)
        raise AssertionError("internal error: every try has returned or raised")

    def _range(self, found: FarObject, begin: int, end: int) -> memoryview:
        asked = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        link, until = self._links.get(found.key, ("", 0.0))
        if time.monotonic() < until:
            answer = http_backoff("GET", link, headers=asked)
            if answer.status_code not in (206, 200):  # the link has expired
                self._links.pop(found.key, None)
                raise EOFError(f"a link of the Hub has expired ({answer.status_code})")
        else:
            url = hf_hub_url(self._repository, found.key, revision=self._commit)
            headers = {**build_hf_headers(), **asked}
            answer = http_backoff("GET", url, headers=headers, follow_redirects=True)
            answer.raise_for_status()
            if urlsplit(str(answer.url)).netloc != urlsplit(url).netloc:
                self._links[found.key] = str(answer.url), time.monotonic() + _LINK_SECONDS
        whole = answer.headers.get("content-range", "").rpartition("/")[2]
        if answer.status_code != 206 or whole != str(found.size):
            raise BadRequest(
                f"{self.url}/{found.key}: the Hub cannot send a part of this file of {found.size} "
                f"bytes: it answered with status {answer.status_code} ({whole or 'none'}); "
                "download the file, and name the copy"
            )
        data = memoryview(answer.content)
        if len(data) != end - begin:
            raise EOFError(f"only {len(data)} of {end - begin} bytes arrived")
        return data

    def _call(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (ZerotoolsError, EOFError):
            raise
        except Exception as error:  # it raises errors of several other libraries
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ZerotoolsError:
        name = type(error).__name__
        response: Any = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if name == "RevisionNotFoundError":
            return BadRequest(
                f"{self.url}: the repository has no revision {self._revision!r}; correct the name "
                "of the branch, tag or commit"
            )
        if name == "OfflineModeIsEnabled":
            return BadRequest(f"{self.url} cannot be read: HF_HUB_OFFLINE is set; unset it")
        if name in ("GatedRepoError", "RepositoryNotFoundError") or status in (401, 403, 404):
            return BadRequest(
                f"{self.url} cannot be read: the Hub does not know it, or does not show it to you "
                f"({status}). Check its spelling and ask for access on its page; "
                f"{CREDENTIALS['hf']}"
            )
        why = f"it answered {status}" if status else f"it does not answer ({name})"
        return HostUnreachable(
            f"{self.url} cannot be read: {why}. It was tried several times; run the command again"
        )
