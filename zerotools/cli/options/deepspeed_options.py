"""The options of commands that lay out a DeepSpeed checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from zerotools.formats.deepspeed.schema.ds_config import read_config
from zerotools.formats.format import WriteOptions


def zero_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add what the resuming run should have; the command is given it as `settings`."""

    @wraps(command)
    def collected(
        *,
        stage: str | None,
        sub_group_size: int | None,
        round_robin: str | None,
        ds_config: Path | None,
        **given: Any,
    ) -> None:
        settings = WriteOptions(
            stage=None if stage is None else int(stage),
            sub_group_size=sub_group_size,
            round_robin=None if round_robin is None else round_robin == "on",
            ds_config=None if ds_config is None else read_config(ds_config),
        )
        command(**given, settings=settings)

    options = (
        click.option(
            "--stage",
            type=click.Choice(["1", "2", "3"]),
            help="ZeRO stage to write. Default: the source's.",
        ),
        click.option(
            "--sub-group-size",
            type=int,
            metavar="N",
            help="Stage 3's sub_group_size to write. Default: the source's.",
        ),
        click.option(
            "--round-robin",
            type=click.Choice(["on", "off"]),
            help="round_robin_gradients of stages 1 and 2. Default: the source's.",
        ),
        click.option(
            "--ds-config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take these from the DeepSpeed config of the run that will resume.",
        ),
    )
    for option in reversed(options):
        option(collected)
    return collected
