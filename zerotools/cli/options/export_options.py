"""Options of the commands that write a model: which weights, their names, types and files."""

from __future__ import annotations

from collections.abc import Callable

import click

from zerotools.cli.options.sizes import ByteSize
from zerotools.ops.conversions.consolidate import DTYPES, Options, exported_formats
from zerotools.ops.conversions.few_bits import AUTO
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.ops.weights.selection import MASTERS, WEIGHTS

Command = Callable[..., int | None]

dtype_option = click.option(
    "--dtype",
    type=click.Choice([AUTO, *DTYPES, *QUANTISERS]),
    default=AUTO,
    show_default=True,
    help="Type of the floating-point weights; auto is the 16-bit type of the run, and leaves "
    "quantised weights as they are.",
)


def weights_from_option(verb: str) -> Callable[[Command], Command]:
    """`--from`: which weights of a run `verb` takes."""
    return click.option(
        "--from",
        "weights_from",
        type=click.Choice([MASTERS, WEIGHTS]),
        default=MASTERS,
        show_default=True,
        help=f"{verb} the fp32 masters, if there are any, or the 16-bit weights.",
    )


max_shard_size_option = click.option(
    "--max-shard-size",
    "max_shard_bytes",
    type=ByteSize(),
    default="5GB",
    show_default=True,
    help="Largest weights file.",
)

format_option = click.option(
    "--format",
    type=click.Choice(list(exported_formats())),
    default=Options.format,
    show_default=True,
    help="Files to write; torch is pytorch_model.bin.",
)

keep_aliases_option = click.option(
    "--keep-aliases", is_flag=True, help="Write tied weights under each of their names."
)

allow_overflow_option = click.option(
    "--allow-overflow", is_flag=True, help="Let weights become infinite in fp16."
)


def name_options(stripped: str = "", renamed: str = "") -> Callable[[Command], Command]:
    """`--strip-prefix`, `--rename`, `--include` and `--exclude`; what the help of the first two
    says beside, as `, those of OTHER too`."""
    options = (
        click.option(
            "--strip-prefix",
            multiple=True,
            metavar="PREFIX",
            help=f"Remove this prefix from the names that begin with it{stripped}.",
        ),
        click.option(
            "--rename",
            multiple=True,
            metavar="REGEX=REPL",
            help=f"Replace in every name, after --strip-prefix{renamed}.",
        ),
        click.option(
            "--include", multiple=True, metavar="GLOB", help="Export only these (new) names."
        ),
        click.option(
            "--exclude", multiple=True, metavar="GLOB", help="Leave these (new) names out."
        ),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
