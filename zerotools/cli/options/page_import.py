"""The joint contents of a web page's blocks: a launch line, and the configs that belong to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from zerotools.cli.options.config_options import Configs
from zerotools.cli.options.recipe_options import RecipeOptions
from zerotools.cli.output.language import told
from zerotools.cli.output.render import clean
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.imports.combine import Imported
from zerotools.jobs.imports.recipes.launch_line import read_launch
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.text.page_blocks import BlockKind, PageBlock, blocks_of, listed

OPTION = "--block"
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
Finish = Callable[[Configs, Recipe | None], Imported]


def page_import(
    text: str, source: str, numbers: Iterable[int], finish: Finish | None = None
) -> Imported:
    """Return the job in blocks of a page: those of `numbers`, or the only one of each kind.
    `finish` makes it from their configs and arguments, by default for training.

    Raises:
        BadRequest: the page has none, or several of a kind, or does not have a given number.
    """
    blocks, place = blocks_of(text), Path(source)
    if not blocks and (text.startswith("#!") or place.suffix in _SCRIPTS):
        # It starts its program by python, which is no launch line where people write sentences.
        script = read_launch(text, source, place.parent, lines=True, lenient=True)
        configs = Configs(None, None, RecipeOptions(), lenient=True)
        return configs.with_recipe(None, script) if finish is None else finish(configs, script)
    if not blocks:
        raise BadRequest(
            f"{source}: has no launch line and no config of DeepSpeed or accelerate; paste your "
            "command or config into --launch -, --deepspeed or --accelerate, give a YAML with "
            "--llamafactory or --axolotl, or start without one: zerotools init asks for the "
            "model and the GPUs, zerotools estimate shows which settings fit them"
        )
    sys.stderr.write(f"# {told(f'{clean(source)} has these blocks', sys.stderr)}\n")
    for line in listed(blocks):
        sys.stderr.write(f"#   {clean(line)}\n")
    chosen = _of_numbers(blocks, source, numbers) or _only_ones(blocks, source)
    recipe = next((_recipe(each, source) for each in chosen if each.kind is BlockKind.LAUNCH), None)
    configs = Configs(None, None, RecipeOptions(), lenient=True)
    for block in chosen:
        if block.kind is BlockKind.DEEPSPEED:
            recipe, configs = _with_deepspeed(block, source, recipe, configs)
        elif block.kind is BlockKind.ACCELERATE:
            path = Path(source)
            written = {**configs.written, str(path): block.in_place}
            configs = configs._replace(accelerate=path, written=written)
    return configs.with_recipe(None, recipe) if finish is None else finish(configs, recipe)


def _with_deepspeed(
    block: PageBlock, source: str, recipe: Recipe | None, configs: Configs
) -> tuple[Recipe | None, Configs]:
    """Use the config for the file that the launch line names, if it names one."""
    if recipe is not None and recipe.deepspeed is not None:
        named = str(recipe.deepspeed.value)
        return replace(recipe, documents={**recipe.documents, named: block.in_place}), configs
    path = Path(f"{source} (DeepSpeed)")
    written = {**configs.written, str(path): block.in_place}
    return recipe, configs._replace(deepspeed=path, written=written)


def _recipe(block: PageBlock, source: str) -> Recipe:
    return read_launch(block.in_place, source, Path(), lines=True, lenient=True)


def _of_numbers(
    blocks: Sequence[PageBlock], source: str, numbers: Iterable[int]
) -> list[PageBlock]:
    chosen = []
    for number in dict.fromkeys(numbers):
        if not 1 <= number <= len(blocks):
            raise BadRequest(f"{OPTION} {number}: {source} has only the blocks 1 to {len(blocks)}")
        chosen.append(blocks[number - 1])
    _refuse_two(chosen, source)
    return chosen


def _only_ones(blocks: Sequence[PageBlock], source: str) -> list[PageBlock]:
    """Return all blocks, without launch lines that name no program of training."""
    usable: list[PageBlock] = []
    refusal: ZerotoolsError | None = None
    for block in blocks:
        if block.kind is BlockKind.LAUNCH:
            try:
                _recipe(block, source)
            except ZerotoolsError as error:
                refusal = refusal or error
                sys.stderr.write(f"#   line {block.line} is not read: {clean(str(error))}\n")
                continue
        usable.append(block)
    if refusal is not None and not usable:
        raise refusal
    _refuse_two(usable, source)
    return usable


def _refuse_two(blocks: Sequence[PageBlock], source: str) -> None:
    kinds = [each.kind for each in blocks]
    for kind in BlockKind:
        if kinds.count(kind) > 1:
            raise BadRequest(
                f"{source}: has {kinds.count(kind)} {kind.value}s; choose those that belong "
                f"together with {OPTION} N,N (the numbers above)"
            )
