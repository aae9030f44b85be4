"""`zerotools import`: convert a config or a launch line of another program to a job file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from zerotools.cli.options.click_options import (
    LAUNCHERS,
    OUTPUT,
    GroupedCommand,
    json_option,
    option,
)
from zerotools.cli.options.import_options import (
    WORDING,
    Closing,
    Configs,
    LaunchOptions,
    config_options,
    read_job_file,
    write_report,
)
from zerotools.cli.output import render
from zerotools.cli.output.language import translated
from zerotools.cli.output.render import clean
from zerotools.core.errors import BadRequest, Unsupported, ZerotoolsError
from zerotools.jobs.imports.accelerate_yaml import YAML_KEYS
from zerotools.jobs.imports.combine_configs import Imported, JobFile, job_text
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import Findings, add_repairs, next_steps
from zerotools.jobs.imports.reading.import_report import report_lines as report_lines
from zerotools.jobs.imports.script_job import import_script
from zerotools.jobs.text.config_document import LARGEST_FILE, Document, read_text, text_of
from zerotools.jobs.text.configs_in_page import BlockKind, PageBlock, block_lines, blocks_of
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.yaml_parser import parse_yaml


def _numbers(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, ...]:
    parts = [] if given is None else given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter("must be whole numbers with commas between them, as in 1,3")
    return tuple(int(part) for part in parts)


@click.command("import", cls=GroupedCommand)
@click.argument(
    "job_file", metavar="[JOBFILE|PAGE]", required=False, type=click.Path(allow_dash=True)
)
@config_options
@option(
    "--as",
    "target",
    group=LAUNCHERS,
    type=click.Choice(["train", "script"]),
    default="train",
    show_default=True,
    help="Make a job to train the model with zerotools, or to run the program of the launch "
    'line unchanged (engine = "script").',
)
@option(
    "--block",
    "blocks",
    group=LAUNCHERS,
    callback=_numbers,
    metavar="N,...",
    help="Import these blocks of PAGE together (a launch line and its configs), by their numbers "
    "in the printed list. For a script with several launch lines: the number of one of them.",
)
@option(
    "-o",
    "--output",
    group=OUTPUT,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The job file to write; it must not exist.  [default: standard output]",
)
@json_option
def command(
    job_file: str | None,
    configs: Configs,
    target: str,
    blocks: tuple[int, ...],
    output: Path | None,
    as_json: bool,
) -> int:
    """Print the job file for a config, or for the command that starts a training program.

    PAGE is a web page that was saved as text, Markdown or HTML, or - for standard input. Its launch
    line and configs are found, repaired as with --lenient, and imported together.

    JOBFILE has the keys that the config lacks (model, data, steps), and values for "auto". If both
    have a key, the values must be the same. Without JOBFILE, missing keys are listed. A launch line
    and the YAML of LLaMA-Factory or axolotl have model, data and steps, and name the configs that
    belong to them.

    Standard error shows the repairs, the result for each key of the config (mapped to a key of the
    job file, passed through to DeepSpeed, or ignored), the differences between the job and the
    program, and the next step. --json lists every key with its file and line.
    """
    if configs.lenient and not configs.any:
        raise BadRequest(
            "--lenient is for a config, because a page is always repaired; give --deepspeed or "
            "--accelerate, or leave --lenient out"
        )
    if configs.any and blocks and (configs.launch_options.launch is None or len(blocks) > 1):
        raise BadRequest("--block is for a page or a script; leave out --block or the configs")
    closing = partial(_closing, output, target)
    files: Files = {}

    def finish(chosen: Configs, settings: RunSettings | None) -> Imported:
        if target == "train":
            return chosen.with_settings(job, settings, closing=closing)
        imported, texts = script_import(chosen, job, settings, output, closing)
        files.update(texts)
        return imported

    job: JobFile | None = None
    if configs.any:
        job = None if job_file is None else read_job_file(job_file)
        imported = finish(configs, configs.read(blocks[0] if blocks else None))
    elif job_file is None:
        raise BadRequest(
            "no config to import was given; give a page, --deepspeed, --accelerate, --launch, "
            "--llamafactory or --axolotl"
        )
    else:
        imported = page_import(*_page(job_file), blocks, finish)
    if imported.problem is not None:
        raise imported.problem
    text = job_text(imported)
    if output is not None:
        for path, content in {**files, output: text}.items():
            _write(path, content)
    if as_json:
        render.print_json(
            {
                "job": imported.tree,
                "missing": list(imported.missing),
                "origins": dict(imported.origins),
                "deepspeed": imported.deepspeed,
                **imported.findings.to_json(),
            }
        )
    elif output is None:
        sys.stdout.write(text)
    return 0


def _closing(
    output: Path | None, target: str, imported: Imported, settings: RunSettings | None
) -> Iterator[str]:
    """Yield sentences about the next steps: how to use the job file, or how to run the user's own
    program instead.
    """
    name = "job.toml" if output is None else str(output)
    if output is None:
        yield f"write the job file: repeat this command with -o {name}"
    if imported.missing:
        yield f"add to {name}: {', '.join(imported.missing)}"
    yield f"zerotools submit --dry-run {name} && zerotools submit --follow {name}"
    if settings is not None and settings.program is not None:
        if target == "train":
            yield f"or run {settings.program.name} itself: repeat this command with --as script"
        elif not settings.findings.unsupported:
            yield "or train the model here: repeat this command with --as train"


def _page(name: str) -> tuple[str, str]:
    """Return the text of a page, and the name of the page for messages. `-` means standard
    input.
    """
    if name != "-":
        return read_text(Path(name), "page"), name
    return text_of(sys.stdin.buffer.read(LARGEST_FILE + 1), "standard input", "page"), "page"


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadRequest(f"{output}: exists already; remove it, or name another file") from None


OPTION = "--block"
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
Finish = Callable[[Configs, RunSettings | None], Imported]


def page_import(
    text: str, source: str, numbers: Iterable[int], finish: Finish | None = None
) -> Imported:
    """Import the launch line and the configs from the text of a web page, and return the job.

    The page is split into blocks. `numbers` selects some of the blocks. If it is empty, the page
    must have only one block of each kind. `finish` makes the job from the configs and the launch
    line; by default a training job is made.

    Raises:
        BadRequest: the page has no block, several blocks of a kind, or no block with a given
            number.
    """
    blocks, place = blocks_of(text), Path(source)
    if not blocks and (text.startswith("#!") or place.suffix in _SCRIPTS):
        # It starts its program by python, which is no launch line where people write sentences.
        script = read_launch(text, source, place.parent, lines=True, lenient=True)
        configs = Configs(None, None, LaunchOptions(), lenient=True)
        return configs.with_settings(None, script) if finish is None else finish(configs, script)
    if not blocks:
        raise BadRequest(
            f"{source}: has no launch line and no config of DeepSpeed or accelerate; give the "
            "command or config with --launch -, --deepspeed, --accelerate, --llamafactory or "
            "--axolotl. Or start without one: zerotools init makes a job file, and zerotools "
            "estimate shows which settings fit the GPUs"
        )
    sys.stderr.write(f"# {translated(f'{clean(source)} has these blocks', sys.stderr)}\n")
    for line in block_lines(blocks):
        sys.stderr.write(f"#   {clean(line)}\n")
    chosen = _of_numbers(blocks, source, numbers) or _only_ones(blocks, source)
    settings = next(
        (_launch_settings(each, source) for each in chosen if each.kind is BlockKind.LAUNCH), None
    )
    configs = Configs(None, None, LaunchOptions(), lenient=True)
    for block in chosen:
        if block.kind is BlockKind.DEEPSPEED:
            settings, configs = _with_deepspeed(block, source, settings, configs)
        elif block.kind is BlockKind.ACCELERATE:
            path = Path(source)
            written = {**configs.written, str(path): block.padded_text}
            configs = configs._replace(accelerate=path, written=written)
    return configs.with_settings(None, settings) if finish is None else finish(configs, settings)


def _with_deepspeed(
    block: PageBlock, source: str, settings: RunSettings | None, configs: Configs
) -> tuple[RunSettings | None, Configs]:
    """Add the DeepSpeed config in `block` to `settings` and `configs`, and return both.

    If the launch line names a DeepSpeed file, the text of the block is used in place of this file.
    """
    if settings is not None and settings.deepspeed is not None:
        named = str(settings.deepspeed.value)
        return replace(
            settings, documents={**settings.documents, named: block.padded_text}
        ), configs
    path = Path(f"{source} (DeepSpeed)")
    written = {**configs.written, str(path): block.padded_text}
    return settings, configs._replace(deepspeed=path, written=written)


def _launch_settings(block: PageBlock, source: str) -> RunSettings:
    return read_launch(block.padded_text, source, Path(), lines=True, lenient=True)


def _of_numbers(
    blocks: Sequence[PageBlock], source: str, numbers: Iterable[int]
) -> list[PageBlock]:
    chosen = []
    for number in dict.fromkeys(numbers):
        if not 1 <= number <= len(blocks):
            raise BadRequest(
                f"{OPTION} {number}: {source} has only the blocks 1 to {len(blocks)}; give the "
                "number of one of them"
            )
        chosen.append(blocks[number - 1])
    _refuse_two(chosen, source)
    return chosen


def _only_ones(blocks: Sequence[PageBlock], source: str) -> list[PageBlock]:
    """Return all blocks, except launch lines of programs that do not train.

    Raises:
        BadRequest: two blocks are of the same kind.
    """
    usable: list[PageBlock] = []
    refusal: ZerotoolsError | None = None
    for block in blocks:
        if block.kind is BlockKind.LAUNCH:
            try:
                _launch_settings(block, source)
            except ZerotoolsError as error:
                refusal = refusal or error
                sys.stderr.write(f"#   line {block.line} is left out: {clean(str(error))}\n")
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
                f"{source}: has {kinds.count(kind)} {kind.value}s; choose the blocks to import "
                f"together with {OPTION} N,N (the list above has their numbers)"
            )


Files = dict[Path, str]
"""The texts of the files to write, keyed by path."""


def script_import(
    configs: Configs,
    job: JobFile | None,
    settings: RunSettings | None,
    output: Path | None,
    closing: Closing,
) -> tuple[Imported, Files]:
    """Return a job that runs the user's program, and the texts of files to write next to the job
    file `output`.

    These files are configs that the page or the launch script contains, and configs that were
    repaired. An existing config that the program can read is not written again.

    Raises:
        BadRequest: the program is not found, or a config cannot be read.
    """
    if settings is None:
        raise BadRequest("--as script needs the command of a program; give it with --launch")
    findings = Findings(repairs=list(settings.findings.repairs))
    files: Files = {}
    paths: dict[str, Path] = {}
    for named in (settings.deepspeed, settings.accelerate_file):
        text = None if named is None else _text_to_write(configs, settings, named, findings)
        if named is None or text is None:
            continue
        name = str(named.value)
        if output is None:
            findings.steps.append(f"save the text above as the file {name}")
            continue
        path = (output.parent / f"{output.stem}-{Path(name).name}").absolute()
        files[path], paths[name] = text, path
        findings.steps.append(
            f"the program reads {path.name}, next to the job file, instead of {name}"
        )
    imported = import_script(job, settings, paths, findings)
    if imported.problem is None:
        lines = [f"# {settings.source}", *report_lines(findings, written=True, wording=WORDING)]
        write_report([*lines, *next_steps(findings, closing(imported, settings), WORDING)])
    return imported, files


def _text_to_write(
    configs: Configs, settings: RunSettings, named: ConfigValue, findings: Findings
) -> str | None:
    """Return the text of a config if it must be written to a new file. Return None if the program
    can read the existing file.
    """
    name = str(named.value)
    path = settings.found(name)
    held = {**configs.written, **settings.documents}.get(name)
    if held is None and not path.exists():
        if named is settings.deepspeed and Path(name).suffix not in (".json", ".yaml", ".yml"):
            return None  # a name that the program itself knows
        what = (
            f"{named.label} = {name}: does not exist here; correct the path, or import on the "
            "machine that has this file"
        )
        findings.wrong.append(what)
        return None
    text = read_text(path, "config") if held is None else held
    document = _parsed(text, name, configs.lenient)
    add_repairs(findings, document)
    if document.mended is None and held is None:
        return None
    if document.mended is None:
        findings.repaired.setdefault(name, text)
    return document.mended or text


def _parsed(text: str, name: str, lenient: bool) -> Document:
    if Path(name).suffix in (".yaml", ".yml"):
        try:
            return parse_yaml(text, source=name, lenient=lenient, keys=YAML_KEYS)
        except Unsupported:  # without PyYAML it is left as it is
            return Document(name, {}, {})
    return parse_json(text, source=name, lenient=lenient)
