"""The path of a checkpoint on the command line: of this machine, or the URL of one in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from zerotools.io.stores.addresses import path_of


class CheckpointPath(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Converts text by `path_of`; `-` and similar ones are plain paths."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return path_of(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return files of this machine, completed by the shell itself."""
        return [CompletionItem(incomplete, type="file")]
