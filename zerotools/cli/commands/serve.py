"""`zerotools serve`: serve a sharded checkpoint as a model over HTTP, without writing it."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from zerotools.cli.options.click_options import CheckpointPath, GroupedCommand, options_of
from zerotools.cli.output import render
from zerotools.cli.output.messages import print_message
from zerotools.core.counts_and_sizes import count_text
from zerotools.io.files.keep_freed_memory import keep_freed_memory
from zerotools.public.command_options.declare_and_bind_options import bind_options
from zerotools.public.serve_checkpoint import ServedCheckpoint, ServeKeywords, serving

if TYPE_CHECKING:
    from zerotools.ops.serving.model_server import ModelServer


@click.command("serve", cls=GroupedCommand)
@click.argument("path", type=CheckpointPath())
@options_of(ServeKeywords)
@click.option("--json", "as_json", is_flag=True, help="Print address and keys as JSON.")
def command(path: Path, as_json: bool, **given: Any) -> None:
    """Serve the checkpoint at PATH over HTTP as the Hugging Face model that consolidate would
    write.

    No file is written: the requested bytes or ranges are computed from the checkpoint. Clients send
    the printed token, or sign with the printed keys as for an S3 bucket. The token and the keys are
    new at each start. The server runs until Ctrl-C.
    """
    options = bind_options(ServeKeywords, given)
    keep_freed_memory()
    with ExitStack() as stack:
        before = signal.signal(signal.SIGTERM, _leave)
        stack.callback(signal.signal, signal.SIGTERM, before)
        server, served = stack.enter_context(
            serving(path, options, lambda text: print_message("error", text))
        )
        _end_by_sigterm(server)  # a client may send SIGTERM once it has the address
        for note in served.notes:
            print_message("note", note)
        for warning in served.warnings:
            print_message("warning", warning)
        _print_served(served, as_json=as_json)
        server.serve_forever(poll_interval=0.5)


def _leave(*_: object) -> NoReturn:
    """End the command if a signal arrives while the server is prepared, so that its scratch
    directory is removed.
    """
    sys.exit(128 + signal.SIGTERM)


def _end_by_sigterm(server: ModelServer) -> None:
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start()
    )


def _print_served(served: ServedCheckpoint, *, as_json: bool) -> None:
    if as_json:
        render.print_json_line(served.to_json())
        return
    size = render.size(sum(served.files.values()))
    click.echo(
        f"serving {served.name}: {count_text(len(served.files), 'file')}, {size}, at "
        f"{served.url}\n\n"
        f"  curl -H 'Authorization: Bearer {served.token}' {served.url}/\n\n"
        f"  export HF_ENDPOINT={served.url} HF_TOKEN={served.token}"
        f"    # {served.repository}\n\n"
        f"  export AWS_ENDPOINT_URL={served.url} AWS_REGION=us-east-1 \\\n"
        f"    AWS_ACCESS_KEY_ID={served.access_key_id} \\\n"
        f"    AWS_SECRET_ACCESS_KEY={served.secret_access_key}    # s3://{served.name}/\n\n"
        f"  {served.picture_url}\n"
        "    # draws the checkpoint in a browser\n\n"
        "Ctrl-C stops the server; then its keys no longer work."
    )
