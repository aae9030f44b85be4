"""Finds the store that a path lies in. Each store is opened once in a process."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from zerotools.core.errors import BadRequest
from zerotools.io.stores.remote_source import StorePrefetch
from zerotools.io.stores.store_interface import FarStore
from zerotools.io.stores.store_listing import StoreListing

BUCKETS = ("s3", "gs", "az")
_ENDPOINTS = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_ENDPOINT",
    "HF_ENDPOINT",
)
_WORDS = {"hf": 2}
"""The number of words after `://` that name the store, if there is more than one: `hf://OWNER/MODEL`."""


class Place(NamedTuple):
    """A position in a store.

    It consists of the `store`, the key, the cached listings of the store, and the prefetch for its
    opened files.
    """

    store: FarStore
    key: str
    listing: StoreListing
    prefetch: StorePrefetch


def root_words(scheme: str) -> int:
    """Return the number of words at the beginning of a path that name the store, for a URL
    scheme.
    """
    return _WORDS.get(scheme, 1)


def place_of(scheme: str, words: tuple[str, ...]) -> Place:
    """Return the store of a path, and the key of the path in the store. `words` are the parts of
    the path.

    Raises:
        BadRequest: the store does not exist, or its library is not installed.
    """
    count = root_words(scheme)
    if len(words) < count:
        raise BadRequest(f"{scheme}://{'/'.join(words)} does not name a prefix in a store")
    listing, prefetch = _opened(scheme, words[:count], tuple(map(os.environ.get, _ENDPOINTS)))
    return Place(listing.store, "/".join(words[count:]), listing, prefetch)


@lru_cache(maxsize=64)
def _opened(
    scheme: str, words: tuple[str, ...], endpoints: tuple[str | None, ...]
) -> tuple[StoreListing, StorePrefetch]:
    """Return a store, which is opened if it is not open yet.

    `endpoints` are values of environment variables. If they have changed, the store is opened
    again.
    """
    listing = StoreListing(_open(scheme, words))
    return listing, StorePrefetch(listing)


def _open(scheme: str, words: tuple[str, ...]) -> FarStore:
    if scheme in BUCKETS:
        from zerotools.io.stores.s3_gs_azure_http import open_bucket

        return open_bucket(scheme, words[0])
    if scheme == "hf":
        from zerotools.io.stores.hub_files import HubFiles

        return HubFiles(*words)
    from zerotools.io.stores.s3_gs_azure_http import WebFiles

    return WebFiles(f"{scheme}://{words[0]}")
