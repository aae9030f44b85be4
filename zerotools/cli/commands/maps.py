"""`zerotools maps`: show how training and serving programs arrange the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from zerotools import formats
from zerotools.cli.options.click_options import CheckpointPath, given_as, json_option, options_of
from zerotools.cli.output import render
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import EXIT_DIFFERENCES, BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import ReadOptions
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.stores.parse_url import path_of
from zerotools.maps.map_file import HUB, FamilyMap
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import check_layout, shipped_maps, source_of
from zerotools.maps.transformers_names import ABOUT, MEMORY, PREFIX_MAPS, PrefixMap
from zerotools.ops.weights.check_layout_map import (
    LayoutCheck,
    check_layouts,
    is_no_map,
    made_tensors,
    named_map,
    nearest_of_all,
)
from zerotools.ops.weights.convert_layout import config_of
from zerotools.ops.weights.megatron_run_arguments import with_run_arguments
from zerotools.public.command_options.model_output_options import MapArgOption, map_arguments
from zerotools.public.command_options.read_options import SectionOption, TagOption

_PATH = CheckpointPath()
_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class _LayoutChoice:
    """The layout to show (None: all), and the sizes of the model as `NAME=VALUE`."""

    layout_name: str | None
    map_arg: tuple[str, ...]


@click.command("maps")
@click.argument("action", type=click.Choice(["list", "show", "check"]))
@click.argument("map_name", metavar="[MAP]", required=False)
@click.argument("checkpoint", type=_PATH, required=False)
@click.option(
    "--config",
    type=_PATH,
    metavar="FILE|DIR",
    help="The model's config.json, or a directory that has it.",
)
@click.option("--only", "layout_name", metavar="LAYOUT", help="Show this layout alone.")
@click.option("--toml", is_flag=True, help="Print the map as TOML, so that you can edit a copy.")
@options_of(TagOption)
@options_of(SectionOption)
@options_of(MapArgOption)
@json_option
@given_as("reading", ReadOptions)
@given_as("chosen", _LayoutChoice)
def command(
    action: str,
    map_name: str | None,
    checkpoint: Path | None,
    config: Path | None,
    chosen: _LayoutChoice,
    toml: bool,
    reading: ReadOptions,
    as_json: bool,
) -> int | None:
    """List the layout maps, show one, or check one.

    MAP is the name of a map or a file; the default is the map for the model of --config. `show`
    prints every tensor of each layout, with its shape and the tensors of the Hugging Face model
    that it is made of. `check` proves that each layout covers the whole model and can be inverted,
    and shows the mismatches of CHECKPOINT. The exit status is 1 if CHECKPOINT matches no layout.
    The default of --config is the config.json of CHECKPOINT.
    """
    if action == "list":
        _list(as_json=as_json)
        return None
    if toml and as_json:
        raise BadRequest("--toml and --json exclude each other; leave one out")
    if toml:
        if map_name is None:
            raise BadRequest("--toml prints one map; name the map")
        click.echo(source_of(named_map(map_name, None).name), nl=False)
        return None
    if action == "check" and map_name is not None and checkpoint is None and is_no_map(map_name):
        checkpoint, map_name = path_of(map_name), None
    read, training = None, TrainingState()
    if action == "check" and checkpoint is not None:
        with recording_sources():
            read = formats.read_any(checkpoint, tag=reading.tag, section=reading.section)
            training = formats.training_of(read)
    sizes = _config(config, read)
    given, layout_name = map_arguments(chosen.map_arg), chosen.layout_name
    family = named_map(map_name, sizes)
    if layout_name is not None:
        check_layout(family, layout_name, hub=HUB)
    if action == "show":
        _show(family, layout_name, sizes, given, as_json=as_json)
        return None
    if sizes is None:
        raise BadRequest("maps check needs --config FILE, the config.json of the model")
    asked = dict[str, Any](given)
    if read is not None:
        asked = with_run_arguments(training, sizes, given)
    checks = check_layouts(family, sizes, asked, read)
    if layout_name is not None:
        checks = [each for each in checks if each.name == layout_name]
    fits = any(each.fits for each in checks)
    _print_checks(family, checks, checkpoint, as_json=as_json)
    return None if fits else EXIT_DIFFERENCES


def _config(path: Path | None, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if path is not None:
        return config_of(path / CONFIG if path.is_dir() else path, path)
    if checkpoint is None:
        return None
    found = checkpoint.own_config
    return None if found is None else config_of(found, checkpoint.origin.path)


def _list(*, as_json: bool) -> None:
    if as_json:
        families = [_family_json(family) for family in shipped_maps().values()]
        render.print_json({"maps": [*families, *map(_names_json, PREFIX_MAPS)]})
        return
    for family in shipped_maps().values():
        click.echo(f"{family.name}  {family.about}")
        click.echo(f"  for model_type {', '.join(family.model_types)}")
        click.echo(f"  {HUB}  as on the Hugging Face Hub")
        for layout in family.layouts.values():
            click.echo(f"  {layout.name}  {layout.about}")
    for names in PREFIX_MAPS:
        click.echo(f"{names.name}  {names.about}")
        click.echo(f"  for model_type {', '.join(names.model_types)}")
        for layout_name, about in _names_json(names)["layouts"].items():
            click.echo(f"  {layout_name}  {about}")


def _names_json(names: PrefixMap) -> dict[str, Any]:
    return {
        "name": names.name,
        "about": names.about,
        "model_types": list(names.model_types),
        "layouts": {HUB: "as the Hub has it", MEMORY: ABOUT},
    }


def _family_json(family: FamilyMap) -> dict[str, Any]:
    layouts = {HUB: "as the Hub has it", **{n: each.about for n, each in family.layouts.items()}}
    return {
        "name": family.name,
        "about": family.about,
        "model_types": list(family.model_types),
        "layouts": layouts,
    }


def _show(
    family: FamilyMap,
    layout_name: str | None,
    config: dict[str, Any] | None,
    given: dict[str, int | bool],
    *,
    as_json: bool,
) -> None:
    if config is None:
        raise BadRequest(
            "maps show needs --config FILE, the config.json of the model; --toml prints the map"
        )
    names = [layout_name] if layout_name is not None else list(family.layouts)
    shown: dict[str, Any] = {}
    for name in names:
        try:
            made = made_tensors(layout_of_model(family, name, config, given))
        except BadRequest as error:
            if layout_name is not None:
                raise
            shown[name] = str(error)
            continue
        shown[name] = made
    if as_json:
        render.print_json({"map": family.name, "layouts": {
            name: made if isinstance(made, str) else [
                {"name": each.name, "shape": list(each.shape),
                 "of": [{"name": n, "shape": list(s)} for n, s in each.parts]}
                for each in made
            ]
            for name, made in shown.items()
        }})  # fmt: skip
        return
    for name, made in shown.items():
        click.echo(f"{name}: {family.layouts[name].about if name in family.layouts else HUB}")
        if isinstance(made, str):
            click.echo(f"  {made}")
            continue
        for each in made:
            click.echo(f"  {render.clean(each.name)} {list(each.shape)}")
            for part, shape in each.parts[:_MOST_NAMED]:
                click.echo(f"    {render.clean(part)} {list(shape)}")
            if len(each.parts) > _MOST_NAMED:
                click.echo(f"    and {len(each.parts) - _MOST_NAMED} more")


def _print_checks(
    family: FamilyMap, checks: list[LayoutCheck], checkpoint: Path | None, *, as_json: bool
) -> None:
    if as_json:
        render.print_json(
            {
                "map": family.name,
                "checkpoint": None if checkpoint is None else str(checkpoint),
                "layouts": [_check_json(each, checkpoint) for each in checks],
            }
        )
        return
    click.echo(f"{family.name}  {family.about}")
    nearest = None if checkpoint is None else nearest_of_all(checks)
    for each in checks:
        click.echo(f"  {each.name}: {_verdict(each, checkpoint)}")
        if each is nearest:
            _print_names("missing", each.missing)
            _print_names("unknown", each.unknown)
            for name, shape, expected in each.wrong[:_MOST_NAMED]:
                click.echo(
                    f"    {render.clean(name)} has shape {list(shape)}, but config.json gives it "
                    f"{list(expected)}"
                )


def _verdict(check: LayoutCheck, checkpoint: Path | None) -> str:
    if check.refusal is not None:
        return check.refusal
    tensors = count_text(check.tensors, "tensor")
    if checkpoint is None:
        return f"{tensors}; the layout covers the whole model and can be inverted"
    if check.fits:
        ignored = f"; {len(check.ignored)} are not weights" if check.ignored else ""
        return f"found in the checkpoint: {tensors}{ignored}"
    return (
        f"{len(check.missing)} of {tensors} missing, {len(check.unknown)} unknown, "
        f"{len(check.wrong)} of another shape"
    )


def _print_names(word: str, names: tuple[str, ...]) -> None:
    for name in names[:_MOST_NAMED]:
        click.echo(f"    {word}: {render.clean(name)}")
    if len(names) > _MOST_NAMED:
        click.echo(f"    {word}: {len(names) - _MOST_NAMED} more")


def _check_json(check: LayoutCheck, checkpoint: Path | None) -> dict[str, Any]:
    return {
        "name": check.name,
        "tensors": check.tensors,
        "refusal": check.refusal,
        "fits": check.fits if checkpoint is not None else None,
        "missing": list(check.missing),
        "unknown": list(check.unknown),
        "ignored": list(check.ignored),
        "wrong": [
            {"name": name, "shape": list(shape), "expected": list(expected)}
            for name, shape, expected in check.wrong
        ],
    }
