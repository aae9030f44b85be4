"""S3, Google Cloud Storage, Azure Blob Storage and HTTP servers, by the library obstore.

Only obstore searches for credentials, in the variables and files that the tools of each store use.
Its errors are never shown unchanged (`store_errors`).

An HTTP server cannot list files, and a bucket may refuse to list them. In these cases
`indexed_files` finds the files of a directory by requesting known names:

    .zerotools-output.json          names every file of an output of zerotools
    MANIFEST.json                   names every file of a checkpoint of a job
    model.safetensors.index.json    names the shards of a model
    model.safetensors               a model in one file

The usual files of a model, such as config.json, are requested as well.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.stores.store_errors import (
    CREDENTIALS,
    missing_library,
    object_changed,
    object_gone,
    odd_key,
    store_failure,
    wrong_settings,
)
from zerotools.io.stores.store_interface import (
    FarDirectory,
    FarObject,
    FarStore,
    OddKey,
    directory_of,
)

try:
    import obstore
    from obstore import store as stores
    from obstore.exceptions import BaseError, InvalidPathError, PreconditionError
except ImportError:
    raise missing_library("obstore") from None

_RETRIES: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=120),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10)},
}
_CLIENT: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "300s"}
_BODIES = 4
"""A range is requested at most this many times if its response breaks off."""
_FIRST_WAIT = 0.1
_MOST_DELETED = 1000
_S3_CHAIN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

T = TypeVar("T")


def open_bucket(scheme: str, name: str) -> ObstoreBucket:
    """Open a bucket or container of the store with this URL scheme.

    Raises:
        BadRequest: the environment variables with settings of the store are wrong.
    """
    url = f"{scheme}://{name}"
    try:
        return ObstoreBucket(url, _OPENERS[scheme](name))
    except (BaseError, ValueError, OSError) as error:
        raise wrong_settings(url, error) from None


def open_web(url: str) -> ObstoreBucket:
    """Open an HTTP server as a store that can only be read."""
    try:
        store = stores.HTTPStore(url, client_options=_client(url), retry_config=_RETRIES)
    except (BaseError, ValueError, OSError) as error:
        raise wrong_settings(url, error) from None
    return ObstoreBucket(url, store)


def _client(endpoint: str | None, allowing: str = "") -> Any:
    """Return the options of the HTTP client. They allow http:// if the endpoint has this scheme, or
    if the environment variable `allowing` allows it.
    """
    is_plain = endpoint is not None and endpoint.startswith("http://")
    is_allowed = os.environ.get(allowing, "").lower() in ("true", "1")
    return {**_CLIENT, "allow_http": True} if is_plain or is_allowed else _CLIENT


def _s3(name: str) -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    config: Any = {"endpoint": endpoint} if endpoint else {}
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and not any(
        map(os.environ.get, _S3_CHAIN)
    ):
        raise BadRequest(f"s3://{name}: no credentials were found; {CREDENTIALS['s3']}")
    return stores.S3Store(
        name,
        config=config,
        client_options=_client(endpoint, "AWS_ALLOW_HTTP"),
        retry_config=_RETRIES,
    )


def _gs(name: str) -> Any:
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    config: Any = {}
    if endpoint:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        config = {"base_url": endpoint, "skip_signature": True}
    return stores.GCSStore(
        name,
        config=config,
        client_options=_client(endpoint, "GOOGLE_ALLOW_HTTP"),
        retry_config=_RETRIES,
    )


def _az(name: str) -> Any:
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
    options = _client(endpoint, "AZURE_ALLOW_HTTP")
    return stores.AzureStore(name, client_options=options, retry_config=_RETRIES)


_OPENERS: dict[str, Callable[[str], Any]] = {"s3": _s3, "gs": _gs, "az": _az}


class ObstoreBucket:
    """One bucket or container, or an HTTP server, to which nothing can be written."""

    lists_below = True

    def __init__(self, url: str, store: Any) -> None:
        self.url = url
        self._store = store

    def directory(self, key: str) -> FarDirectory:
        prefix = f"{key}/" if key else None
        try:
            found = _repeated(lambda: obstore.list_with_delimiter(self._store, prefix))
        except (BaseError, ValueError, OSError) as error:
            unlisted = self._unlisted(key, error)
            named = indexed_files(self, key) if isinstance(unlisted, OddKey) else []
            if not named:
                raise unlisted from None
            return replace(directory_of(key, named), problem=str(unlisted))
        objects = [_object(each) for each in found["objects"]]
        return FarDirectory(
            {each.key.rpartition("/")[2]: each for each in objects if each.key != key},
            frozenset(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]),
        )

    def below(self, key: str) -> Iterator[FarObject]:
        prefix = f"{key}/" if key else None
        last: str | None = None  # the last key that was listed
        is_ascending = True  # not so in directory buckets of S3
        pages, broken = self._pages(prefix, last), 0
        while True:
            try:
                page: Any = next(pages, None)
            except (BaseError, ValueError, OSError) as error:
                # The failed iterator returns "end" at the next call.
                broken += 1
                if broken == _BODIES or not is_ascending or not _broke_off(str(error)):
                    raise self._unlisted(key, error) from None
                time.sleep(_FIRST_WAIT * 2**broken)
                pages = self._pages(prefix, last)
                continue
            if page is None:
                return
            broken = 0
            for each in page:
                found = _object(each)
                is_ascending = is_ascending and (last is None or last < found.key)
                last = found.key
                yield found

    def _pages(self, prefix: str | None, after: str | None) -> Iterator[Any]:
        """Begin a listing of the keys with the prefix `prefix` that come after the key `after`."""
        return iter(obstore.list(self._store, prefix, offset=after, chunk_size=1000))

    def _unlisted(self, key: str, error: Exception) -> ZerotoolsError:
        if isinstance(error, InvalidPathError):
            return odd_key(self._url(key), error)
        return store_failure("listed", self._url(key), error)

    def head(self, key: str) -> FarObject | None:
        try:
            return _object(obstore.head(self._store, key))
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise store_failure("read", self._url(key), error) from None
            return None
        except (BaseError, ValueError, OSError) as error:
            raise store_failure("read", self._url(key), error) from None

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        options: Any = {"range": (begin, end)}
        if found.etag:
            options["if_match"] = f'"{found.etag}"'
        url = self._url(found.key)

        def once() -> memoryview:
            answer = obstore.get(self._store, found.key, options=options)
            now = _object(answer.meta)
            if now.size != found.size:
                raise object_changed(url, f"it had {found.size} bytes and has {now.size}")
            signs = [(each.etag, 0.0 if each.etag else each.modified) for each in (found, now)]
            if signs[0] != signs[1] and (now.etag or not found.etag):
                raise object_changed(url, "another object has replaced it")
            data = memoryview(answer.bytes())
            if len(data) != end - begin:
                raise EOFError(f"end of file before message length reached: {len(data)}")
            return data

        try:
            return _repeated(once)
        except FileNotFoundError:
            raise object_gone(url) from None
        except PreconditionError:
            raise object_changed(url, "another object has replaced it") from None
        except (BaseError, ValueError, OSError, EOFError) as error:
            raise store_failure("read", url, error) from None

    def put(
        self, key: str, data: bytes, *, new: bool = False, replaces: FarObject | None = None
    ) -> FarObject:
        mode: Any = "create" if new else "overwrite"
        if replaces is not None:
            mode = {"e_tag": f'"{replaces.etag}"'}
            mode |= {"version": replaces.version} if replaces.version else {}
        try:
            done = _repeated(
                lambda: obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            )
        except (PreconditionError, obstore.exceptions.AlreadyExistsError):
            raise FileExistsError(17, "another run has written it", self._url(key)) from None
        except (BaseError, ValueError, OSError) as error:
            raise store_failure("written", self._url(key), error) from None
        return _written(key, len(data), done)

    def upload(self, key: str, pieces: Iterable[bytes], part_bytes: int, parts: int) -> FarObject:
        raised: list[BaseException] = []
        size = 0

        def watched() -> Iterator[bytes]:
            nonlocal size
            try:
                for each in pieces:
                    size += len(each)
                    yield each
            except GeneratorExit:  # the transfer has failed, and takes no more pieces
                raise
            except BaseException as error:  # raised again below, unchanged
                raised.append(error)
                raise

        try:
            done = obstore.put(
                self._store,
                key,
                watched(),
                chunk_size=part_bytes,
                max_concurrency=parts,
                use_multipart=True,
            )
        except Exception as error:  # reported, whatever the cause is
            if raised:
                raise raised[0] from None
            raise store_failure("written", self._url(key), error) from None
        return _written(key, size, done)

    def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _MOST_DELETED):
            some = list(keys[at : at + _MOST_DELETED])
            try:
                _repeated(partial(obstore.delete, self._store, some))
            except FileNotFoundError:  # one object is missing; other objects may be missing too
                if len(some) > 1:
                    for key in some:
                        self.delete([key])
            except (BaseError, ValueError, OSError) as error:
                raise store_failure("removed", self._url(some[0]), error) from None

    def _url(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


def _repeated(ask: Callable[[], T]) -> T:
    """Call `ask`, and call it again if the response broke off.

    The library itself repeats requests only before a response begins, and never if the request may
    have been executed.
    """
    for tried in range(1, _BODIES):
        try:
            return ask()
        except (FileNotFoundError, ZerotoolsError, PreconditionError):
            raise
        except (BaseError, EOFError) as error:
            if not _broke_off(str(error)):
                raise
            time.sleep(_FIRST_WAIT * 2**tried)
    return ask()


def _broke_off(text: str) -> bool:
    signs = (
        *("response body", "message length", "IncompleteMessage", "UnexpectedEof"),
        *("onnection reset", "onnection closed"),
    )
    return any(sign in text for sign in signs)


def _object(meta: Any) -> FarObject:
    modified = meta["last_modified"].timestamp()
    version = meta["version"] or ""
    return FarObject(meta["path"], meta["size"], _plain(meta["e_tag"]), modified, version)


def _written(key: str, size: int, done: Any) -> FarObject:
    return FarObject(key, size, _plain(done["e_tag"]), version=done["version"] or "")


def _plain(etag: str | None) -> str:
    return (etag or "").removeprefix("W/").strip('"')


_MARKER, _MANIFEST = ".zerotools-output.json", "MANIFEST.json"
_INDEX, _SOLE = "model.safetensors.index.json", "model.safetensors"
_ADAPTER = ("adapter_model.safetensors", "adapter_config.json")
_OF_MODELS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
    "chat_template.jinja", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
_LARGEST_INDEX = 2**28
_SIDE_BY_SIDE = 16


def indexed_files(store: FarStore, directory: str) -> list[FarObject]:
    """Return the existing files that an index in `directory` names; [] if the directory has no
    index.

    Raises:
        BadFile: an index is too large, or is not JSON.
    """
    start = f"{directory}/" if directory else ""
    names: dict[str, None] = {}
    for index, named in ((_MARKER, _files), (_MANIFEST, _files), (_INDEX, _shards)):
        found = store.head(start + index)
        if found is not None:
            names |= dict.fromkeys([index, *named(_tree(store, found))])
            break
    else:
        sole = [name for name in (_SOLE, _ADAPTER[0]) if store.head(start + name) is not None]
        if not sole:
            return []
        names |= dict.fromkeys((*sole, *_ADAPTER))
    wanted = [*dict.fromkeys([*names, *_OF_MODELS])]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        heads = pool.map(lambda name: store.head(start + name), wanted)
        return [each for each in heads if each is not None]


def _tree(store: FarStore, found: FarObject) -> Any:
    url = f"{store.url}/{found.key}"
    if found.size > _LARGEST_INDEX:
        raise BadFile(f"{url} has {found.size} bytes, too many for an index")
    try:
        return json.loads(bytes(store.get(found, 0, found.size)))
    except (ValueError, RecursionError):
        raise BadFile(f"{url} is not JSON") from None


def _files(tree: Any) -> list[str]:
    return _safe(tree.get("files") if isinstance(tree, dict) else None)


def _shards(tree: Any) -> list[str]:
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    return _safe(places.values() if isinstance(places, dict) else None)


def _safe(names: Any) -> list[str]:
    return [name for name in names or () if isinstance(name, str) and stays_below_root(name)]


class WebFiles:
    """The files of one HTTP server, as a `FarStore`."""

    lists_below = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._known: dict[str, list[FarObject]] = {}

    @cached_property
    def _server(self) -> ObstoreBucket:
        return open_web(self.url)

    def directory(self, key: str) -> FarDirectory:
        return directory_of(key, self.below(key))

    def below(self, key: str) -> Iterator[FarObject]:
        for base, objects in self._known.items():
            if key == base or not base or key.startswith(f"{base}/"):
                start = f"{key}/" if key else ""
                return (each for each in objects if each.key.startswith(start))
        found = indexed_files(self._server, key)
        if found:
            self._known[key] = found
        return iter(found)

    def head(self, key: str) -> FarObject | None:
        return self._server.head(key)

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        return self._server.get(found, begin, end)
