"""Options that bring in the configs of other launchers, and what is printed of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.document import read_text
from zerotools.jobs.imports.importing import Imported, JobFile, import_configs
from zerotools.jobs.imports.json_text import parse_json
from zerotools.jobs.imports.report import render
from zerotools.jobs.parse import read_tree

LARGEST_JOB = 1 << 20


class Configs(NamedTuple):
    """The files that were named, and whether blog syntax is let pass."""

    deepspeed: Path | None
    lenient: bool

    @property
    def any(self) -> bool:
        """Whether a config was named."""
        return self.deepspeed is not None

    def imported(self, job: JobFile | None) -> Imported:
        """The job that `job` and these configs say; the report of it goes to stderr.

        Raises:
            BadRequest: a file that cannot be read.
        """
        deepspeed = None
        if self.deepspeed is not None:
            text = read_text(self.deepspeed, "DeepSpeed config")
            deepspeed = parse_json(text, source=str(self.deepspeed), lenient=self.lenient)
        result = import_configs(job, deepspeed=deepspeed)
        sys.stderr.write("".join(f"{line}\n" for line in render(result.findings)))
        return result


def config_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options; the command is given them as `configs`."""

    @wraps(command)
    def collected(*, deepspeed: Path | None, lenient: bool, **given: Any) -> int:
        configs = Configs(deepspeed, lenient)
        if lenient and not configs.any:
            raise BadRequest("--lenient is for a config; give --deepspeed")
        return command(**given, configs=configs)

    options = (
        click.option(
            "--deepspeed",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Take settings from DeepSpeed's JSON.",
        ),
        click.option(
            "--lenient",
            is_flag=True,
            help="Accept comments and trailing commas in JSON, and say where.",
        ),
    )
    for option in reversed(options):
        option(collected)
    return collected


def read_job_file(name: str) -> JobFile:
    """The tree of the job file `name`, `-` for standard input.

    Raises:
        BadRequest: it cannot be read, or is neither TOML nor JSON.
    """
    if name == "-":
        text = _text("standard input", sys.stdin.buffer.read(LARGEST_JOB + 1))
        return JobFile(read_tree(text, source="standard input"), "standard input", Path.cwd())
    path = Path(name)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadRequest(f"{name}: there is no such job file") from None
    except OSError as error:
        raise BadRequest(f"{name}: cannot be read ({error.strerror})") from error
    return JobFile(read_tree(_text(name, data), source=name), name, path.absolute().parent)


def _text(source: str, data: bytes) -> str:
    if len(data) > LARGEST_JOB:
        raise BadRequest(f"{source}: has {len(data)} bytes; a job file has {LARGEST_JOB} at most")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{source}: is not UTF-8 text (byte {error.start})") from None
