"""The command line is frozen: a new command or option is a decision, not a drift.

After a decision, write the new surface with `python -m tests.surface.test_cli_surface`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import click
import pytest

from harness.started import run
from zerotools.cli.command_table import COMMANDS, SECTIONS
from zerotools.cli.main import build
from zerotools.formats import FORMATS

from ..golden_files import DEEPSPEED

GOLDEN = Path(__file__).with_name("cli.txt")
CHECKPOINT = str(DEEPSPEED / "z3-fp32-w2" / "checkpoint")
INSPECT = ("inspect", CHECKPOINT)
RESHARD = ("reshard", CHECKPOINT, "no-such-output", "--world-size", "3", "--dry-run")


def surface() -> Iterator[str]:
    """One line for every command, argument and option."""
    group = build()
    ctx = click.Context(group, info_name="zerotools")
    yield "zerotools"
    yield from sorted(_parameter(parameter) for parameter in group.params)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"zerotools {name}"
        yield from (_parameter(p) for p in command.params if isinstance(p, click.Argument))
        yield from sorted(_parameter(p) for p in command.params if isinstance(p, click.Option))


def _parameter(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        (usage,) = parameter.get_usage_pieces(click.Context(click.Command("x")))
        return f"  {usage}"
    assert isinstance(parameter, click.Option)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return f"  {names}"
    value = parameter.metavar or parameter.type.name.upper()
    return f"  {names} {value}{' ...' if parameter.multiple else ''}"


def test_the_surface_is_the_frozen_one() -> None:
    assert "\n".join(surface()) + "\n" == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert command.name == name
    assert COMMANDS[name].section in SECTIONS
    assert COMMANDS[name].help.endswith(".")
    assert len(COMMANDS[name].help) <= 60
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_print_json(name: str) -> None:
    group = build()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert any("--json" in parameter.opts for parameter in command.params)


@cache
def modules_after() -> Mapping[tuple[str, ...], set[str]]:
    """What a process has imported after `zerotools --help`, the help of each command, `inspect`
    and `reshard`. Each is forked from one process that has imported what all begin with."""
    runs = [("--help",), *((name, "--help") for name in COMMANDS), INSPECT, RESHARD]
    script = (
        "import contextlib, io, json, os, sys\n"
        "from zerotools.cli.main import build, run\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        with contextlib.redirect_stdout(io.StringIO()):\n"
        "            run(build(), arguments)\n"
        "        print(json.dumps(sorted(sys.modules)), flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
    )
    command = [sys.executable, "-c", script, json.dumps(runs)]
    done = run(command, capture_output=True, text=True, check=True, timeout=60)
    found = map(json.loads, done.stdout.splitlines())
    return {arguments: set(names) for arguments, names in zip(runs, found, strict=True)}


HEAVY = {"torch", "transformers", "aiohttp", "asyncio", "zerotoolsd"}


def test_help_imports_no_command() -> None:
    loaded = modules_after()[("--help",)]
    assert not loaded & {entry.module for entry in COMMANDS.values()}
    assert not loaded & (HEAVY | {"zerotools.jobs.client.daemon_client", "psutil", "numpy"})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_no_other(name: str) -> None:
    loaded = modules_after()[name, "--help"]
    others = {entry.module for other, entry in COMMANDS.items() if other != name}
    assert COMMANDS[name].module in loaded
    assert not loaded & others
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", [n for n, e in COMMANDS.items() if e.section == "Checkpoints"])
def test_a_checkpoint_command_knows_no_jobs(name: str) -> None:
    loaded = modules_after()[name, "--help"]
    assert not {module for module in loaded if module.startswith("zerotools.jobs")}
    assert not loaded & {"http.client", "psutil"}


def test_inspect_imports_neither_numpy_nor_another_format() -> None:
    loaded = modules_after()[INSPECT]
    parts = [name.split(".")[2:4] for name in loaded if name.startswith("zerotools.formats.")]
    rooms = {tuple(part) for part in parts if len(part) == 2 and "names" not in part[1]}
    assert ("deepspeed", "reading") in rooms
    assert not rooms & {("deepspeed", "writing"), ("deepspeed", "logical")}
    assert {room for room in rooms if room[0] != "deepspeed"} == {
        (name, "format") for name in FORMATS if name not in ("deepspeed", "universal")
    }
    assert not loaded & (HEAVY | {"numpy", "ml_dtypes", "concurrent.futures"})


def test_reshard_imports_neither_weights_nor_the_checks_of_verify() -> None:
    packages = ("maps", "ops.quantised", "ops.resume_from_other_program", "ops.weights")
    unused = tuple(f"zerotools.{package}." for package in packages)
    loaded = modules_after()[RESHARD]
    assert not [name for name in loaded if name.startswith(unused)]
    assert not loaded & {
        "zerotools.core.tensor_parallel_placement",
        "zerotools.ops.execution.execute_part",
        "zerotools.ops.verify_source_and_output",
        "zerotools.runs.training_record",
    }


@pytest.mark.parametrize("name", [n for n, e in COMMANDS.items() if e.section != "Checkpoints"])
def test_a_job_command_knows_no_checkpoints(name: str) -> None:
    loaded = modules_after()[name, "--help"]
    assert not loaded & {"numpy", "ml_dtypes", "safetensors"}


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(surface()) + "\n", encoding="utf-8")
