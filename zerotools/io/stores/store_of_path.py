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
_ROOT_PARTS = {"hf": 2}
"""The number of path components after `://` that name the store, if it is not 1:
`hf://OWNER/MODEL`.
"""


class Place(NamedTuple):
    """The position of a path: its `store`, its `key` there, and the store's cached listings and
    prefetch."""

    store: FarStore
    key: str
    listing: StoreListing
    prefetch: StorePrefetch


def root_parts(scheme: str) -> int:
    """Return the number of path components after `scheme://` that name the store, such as 1 for
    a bucket.
    """
    return _ROOT_PARTS.get(scheme, 1)


def place_of(scheme: str, parts: tuple[str, ...]) -> Place:
    """Return the store of a path, and the key of the path in the store. `parts` are the components
    of the path after `scheme://`.

    Raises:
        BadRequest: `parts` do not name a store, or the library of the store is not installed.
    """
    count = root_parts(scheme)
    if len(parts) < count:
        raise BadRequest(f"{scheme}://{'/'.join(parts)} does not name a prefix in a store")
    listing, prefetch = _opened(scheme, parts[:count], tuple(map(os.environ.get, _ENDPOINTS)))
    return Place(listing.store, "/".join(parts[count:]), listing, prefetch)


@lru_cache(maxsize=64)
def _opened(
    scheme: str, parts: tuple[str, ...], endpoints: tuple[str | None, ...]
) -> tuple[StoreListing, StorePrefetch]:
    """Open a store, and return its cached listings and its prefetch. Each store is opened only
    once.

    `endpoints` are the values of the environment variables that set endpoints. If these values have
    changed, the store is opened again.
    """
    listing = StoreListing(_open(scheme, parts))
    return listing, StorePrefetch(listing)


def _open(scheme: str, parts: tuple[str, ...]) -> FarStore:
    if scheme in BUCKETS:
        from zerotools.io.stores.s3_gs_azure_http import open_bucket

        return open_bucket(scheme, parts[0])
    if scheme == "hf":
        from zerotools.io.stores.hub_files import HubFiles

        return HubFiles(*parts)
    from zerotools.io.stores.s3_gs_azure_http import WebFiles

    return WebFiles(f"{scheme}://{parts[0]}")
