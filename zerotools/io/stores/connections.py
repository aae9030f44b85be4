"""The store that a path lies in. Each is opened once in a process."""

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
"""The number of path words that name the store, if it is not one."""


class Place(NamedTuple):
    """A key in a store, the cached listings of the store, and the opened files."""

    store: FarStore
    key: str
    listing: StoreListing
    prefetch: StorePrefetch


def root_words(scheme: str) -> int:
    """Return how many words of a path name the store."""
    return _WORDS.get(scheme, 1)


def place_of(scheme: str, words: tuple[str, ...]) -> Place:
    """Return the location of a path.

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
    """Return the store for these endpoints of the environment."""
    listing = StoreListing(_open(scheme, words))
    return listing, StorePrefetch(listing)


def _open(scheme: str, words: tuple[str, ...]) -> FarStore:
    if scheme in BUCKETS:
        from zerotools.io.stores.obstore_stores import open_bucket

        return open_bucket(scheme, words[0])
    if scheme == "hf":
        from zerotools.io.stores.hub_files import HubFiles

        return HubFiles(*words)
    from zerotools.io.stores.obstore_stores import WebFiles

    return WebFiles(f"{scheme}://{words[0]}")
