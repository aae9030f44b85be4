"""Serve a checkpoint as a model over HTTP, without writing the model."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.conversions.consolidate import prepare_export
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.serving.http_answers import served_model
from zerotools.ops.serving.token_and_signature_check import Credentials
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    RESOURCES,
    Option,
    Size,
    StrPath,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.model_output_options import (
    AdapterOptions,
    CheckNamesOption,
    MastersOption,
    ModelOptions,
    export_options,
)
from zerotools.public.command_options.part_and_memory_options import budget_of
from zerotools.public.command_options.read_options import (
    ConfigDirOption,
    ReadingOptions,
    WorkersOption,
)
from zerotools.public.inspect_checkpoint import inspect

if TYPE_CHECKING:
    from zerotools.ops.serving.model_server import ModelServer

_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:]+\]|[^:\[\]]+):(?P<port>\d{1,5})")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


class AddressOptions(TypedDict, total=False):
    """Options for the address of the server and the name of its model."""

    listen: Annotated[
        str,
        Option(
            group=OUTPUT,
            default="127.0.0.1:0",
            metavar="HOST:PORT",
            help="Address to listen on; port 0 selects a free port.",
        ),
    ]
    name: Annotated[
        str,
        Option(
            group=OUTPUT,
            default="model",
            help="Name of the bucket and of the repository.",
        ),
    ]


class RequestsMemoryOption(TypedDict, total=False):
    """The option for the memory of the server."""

    max_memory: Annotated[
        Size,
        Option(
            group=RESOURCES,
            default="256MiB",
            help="Memory for the buffers of all requests together.",
        ),
    ]


class ServeKeywords(
    ReadingOptions,
    MastersOption,
    AdapterOptions,
    ModelOptions,
    CheckNamesOption,
    AddressOptions,
    ConfigDirOption,
    RequestsMemoryOption,
    WorkersOption,
    total=False,
):
    """The options of `zerotools serve`."""


@dataclass(frozen=True)
class ServedCheckpoint:
    """A served model.

    Clients send `token` as a bearer token, or sign requests for the S3 bucket `name` with
    `access_key_id` and `secret_access_key`. `files` has the size of each file, keyed by name.
    `revision` is the revision of all files. `picture_url` is the URL of a page that draws the
    checkpoint. `notes` and `warnings` are sentences.
    """

    url: str
    picture_url: str = field(repr=False)
    name: str
    revision: str
    token: str = field(repr=False)
    access_key_id: str
    secret_access_key: str = field(repr=False)
    files: Mapping[str, int]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def repository(self) -> str:
        """The name of the repository that clients of the Hugging Face Hub should request."""
        return f"local/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which clients of the Hub and of S3 use this server."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.token,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/serve-json.md)."""
        return {
            "url": self.url,
            "picture_url": self.picture_url,
            "name": self.name,
            "revision": self.revision,
            "token": self.token,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "files": [{"name": name, "size": size} for name, size in self.files.items()],
        }


@takes_options(ServeKeywords)
@contextmanager
def serve(
    path: StrPath,
    *,
    on_error: Callable[[str], None] = lambda _: None,
    **options: Unpack[ServeKeywords],
) -> Iterator[ServedCheckpoint]:
    """Serve the Hugging Face model that `consolidate` would write from the checkpoint at `path`
    over HTTP, inside a `with` block. The server stops when the block ends.

    The model is not written, because threads of this process compute the requested bytes.
    `on_error` is called with a sentence for each request that failed.

    Raises:
        BadRequest: `path` does not exist, an option is wrong, or the address is in use.
        BadFile: `path` is not a checkpoint, or it is damaged.
        Unsupported: the format cannot be read.
    """
    given = bind_options(ServeKeywords, options)
    with serving(path_of(path), given, on_error) as (server, served):
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(
    path: Path, given: Mapping[str, Any], on_error: Callable[[str], None]
) -> Iterator[tuple[ModelServer, ServedCheckpoint]]:
    """Return a context with a server that accepts connections, but does not answer requests yet.
    `given` are bound `ServeKeywords`."""
    name, listen = given["name"], given["listen"]
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"--name {name}: must be 3 to 63 lower-case letters, digits and hyphens, because it "
            "is the name of a bucket"
        )
    address, budget = _address(listen), budget_of(given)
    # Values that are computed in advance (adapters that are added to their weights) lie here.
    with TemporaryDirectory(prefix="zerotools-serve-") as scratch:
        conversion = prepare_export(
            path,
            Path(scratch, name),
            export_options(given),
            tag=given["tag"],
            layout=given["layout"],
            section=given["section"],
            config_dir=given["config_dir"],
        )
        from zerotools.ops.serving.model_server import (
            ModelServer,  # http.server, which no --help needs
        )

        reading = {each: given[each] for each in ReadingOptions.__annotations__}

        def draw() -> str:
            return inspect(path, **reading).to_html()

        credentials, model = Credentials(), served_model(conversion, name)
        with ByteSource(conversion, budget, strict=not given["allow_overflow"]) as source:
            try:
                server = ModelServer(address, model, source, credentials, on_error, draw)
            except OSError as error:
                raise BadRequest(
                    f"--listen {listen}: {error.strerror}; choose another address or port"
                ) from None
            with server:
                yield (
                    server,
                    ServedCheckpoint(
                        url=server.url,
                        picture_url=server.picture_url,
                        name=name,
                        revision=model.revision,
                        token=credentials.token,
                        access_key_id=credentials.key_id,
                        secret_access_key=credentials.secret,
                        files={each.name: each.size for each in model.files.values()},
                        notes=conversion.notes,
                        warnings=(*conversion.warnings, *filter(None, [conversion.lacking])),
                    ),
                )


def _address(listen: str) -> tuple[str, int]:
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found["port"]) > 65535:
        raise BadRequest(f"--listen {listen}: is not HOST:PORT, such as 127.0.0.1:8080")
    return found["host"].strip("[]"), int(found["port"])
