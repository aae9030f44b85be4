"""`zerotools serve`: read a sharded checkpoint as a model, over HTTP, without writing it."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from zerotools.cli.options.checkpoint_path import CheckpointPath
from zerotools.cli.options.export_options import (
    allow_overflow_option,
    dtype_option,
    keep_aliases_option,
    max_shard_size_option,
    name_options,
    weights_from_option,
)
from zerotools.cli.options.shared import (
    config_dir_option,
    layout_option,
    section_option,
    tag_option,
)
from zerotools.cli.options.sizes import ByteSize
from zerotools.cli.output import render
from zerotools.cli.output.messages import say
from zerotools.core.counts import counted
from zerotools.core.errors import BadRequest
from zerotools.ops.conversions.consolidate import Options, prepare
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.serving.access import Credentials
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.serving.served_model import ServedModel, served_model

if TYPE_CHECKING:
    from zerotools.ops.serving.server import ModelServer

_LISTEN = re.compile(r"(?P<host>\[[0-9A-Fa-f:]+\]|[^:\[\]]+):(?P<port>\d{1,5})")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@click.command("serve")
@click.argument("path", type=CheckpointPath())
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 is any that is free.",
)
@click.option(
    "--name",
    default="model",
    show_default=True,
    help="What the bucket is called, and the repository.",
)
@tag_option
@layout_option
@section_option
@config_dir_option
@dtype_option
@max_shard_size_option
@weights_from_option("Serve")
@name_options()
@keep_aliases_option
@allow_overflow_option
@click.option(
    "--max-memory",
    type=ByteSize(),
    default="256MiB",
    show_default=True,
    help="Memory for the buffers of all requests together.",
)
@click.option(
    "--workers", type=int, default=None, help="Threads. Default: one per core, at most 8."
)
@click.option("--json", "as_json", is_flag=True, help="Print address and keys as JSON.")
def command(
    path: Path,
    listen: str,
    name: str,
    tag: str | None,
    layout: Path | None,
    section: str | None,
    config_dir: Path | None,
    dtype: str,
    max_shard_bytes: int,
    weights_from: str,
    strip_prefix: tuple[str, ...],
    rename: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    keep_aliases: bool,
    allow_overflow: bool,
    max_memory: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Show the checkpoint at PATH over HTTP as the Hugging Face model that consolidate would write.

    Nothing is written: bytes are made as they are asked for, by ranges too. Whoever asks shows the
    token that is printed, or signs with the keys, as for an S3 bucket. Both are made at each start.
    It serves until Ctrl-C.
    """
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"--name {name}: must be 3 to 63 lower-case letters, digits and hyphens, as the name "
            "of a bucket"
        )
    address = _address(listen)
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    options = Options(
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
        weights_from=weights_from,
        strip_prefix=strip_prefix,
        rename=rename,
        include=include,
        exclude=exclude,
        keep_aliases=keep_aliases,
    )
    # What is computed before (adapters that are added to their weights) lies here.
    with TemporaryDirectory(prefix="zerotools-serve-") as scratch_name:
        scratch = Path(scratch_name)
        conversion = prepare(
            path,
            scratch / name,
            options,
            tag=tag,
            layout=layout,
            section=section,
            config_dir=config_dir,
        )
        for note in conversion.notes:
            say("note", note)
        for warning in (*conversion.warnings, *filter(None, [conversion.lacking])):
            say("warning", warning)
        from zerotools.ops.serving.server import ModelServer  # http.server, which no --help needs

        credentials = Credentials()
        model = served_model(conversion, name)
        with ByteSource(conversion, budget, strict=not allow_overflow) as source:
            try:
                server = ModelServer(
                    address, model, source, credentials, lambda text: say("error", text)
                )
            except OSError as error:
                raise BadRequest(
                    f"--listen {listen}: {error.strerror}; choose another address or port"
                ) from None
            with server:
                _tell(server, model, credentials, as_json=as_json)
                _serve(server)


def _serve(server: ModelServer) -> None:
    """Until SIGTERM, or Ctrl-C, which is raised again."""
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start()
    )
    server.serve_forever(poll_interval=0.5)


def _address(listen: str) -> tuple[str, int]:
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found["port"]) > 65535:
        raise BadRequest(f"--listen {listen}: is not HOST:PORT, such as 127.0.0.1:8080")
    return found["host"].strip("[]"), int(found["port"])


def _tell(
    server: ModelServer, model: ServedModel, credentials: Credentials, *, as_json: bool
) -> None:
    size = sum(each.size for each in model.files.values())
    if as_json:
        render.print_json_line(
            {
                "url": server.url,
                "name": model.name,
                "revision": model.revision,
                "token": credentials.token,
                "access_key_id": credentials.key_id,
                "secret_access_key": credentials.secret,
                "files": [{"name": each.name, "size": each.size} for each in model.files.values()],
            }
        )
        return
    click.echo(
        f"serving {model.name}: {counted(len(model.files), 'file')}, {render.size(size)}, at "
        f"{server.url}\n\n"
        f"  curl -H 'Authorization: Bearer {credentials.token}' {server.url}/\n\n"
        f"  export HF_ENDPOINT={server.url} HF_TOKEN={credentials.token}"
        f"    # local/{model.name}\n\n"
        f"  export AWS_ENDPOINT_URL={server.url} AWS_REGION=us-east-1 \\\n"
        f"    AWS_ACCESS_KEY_ID={credentials.key_id} \\\n"
        f"    AWS_SECRET_ACCESS_KEY={credentials.secret}    # s3://{model.name}/\n\n"
        "Ctrl-C ends it, and the keys with it."
    )
