"""`trl sft` and the other commands of TRL's console program, read as the equivalent `accelerate
launch`.

trl/cli.py: a command starts its script by accelerate. The script keeps the arguments that it knows,
and accelerate gets the others; `--accelerate_config` names one of TRL's presets, or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.launch_commands import StartCommand
from zerotools.jobs.imports.recipes.shell_words import Word
from zerotools.jobs.launcher_keys.launch_flags import WORDS_AFTER
from zerotools.jobs.launcher_keys.program_keys import TRL_LAUNCH, TRL_PRESETS

PRESET = "accelerate_config"
SCRIPTS = "trl.scripts."
_FLAGS = WORDS_AFTER["accelerate"]


def as_accelerate(start: StartCommand) -> StartCommand:
    """Return the command of accelerate that a command of TRL runs; another one is returned as it
    is."""
    if start.kind != "trl":
        return start
    first, method, *rest = start.words
    options, arguments = _divided(rest)

    def word(text: str) -> Word:
        return Word(text, first.line)

    script = word(f"{SCRIPTS}{method.text}")
    words = [word("accelerate"), word("launch"), *options, word("-m"), script, *arguments]
    return replace(start, kind="accelerate", words=words)


def _divided(words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Return the options of accelerate, and the arguments of the script."""
    options: list[Word] = []
    arguments: list[Word] = []
    preset: Word | None = None
    at = 0
    while at < len(words):
        title, equals, value = words[at].text.partition("=")
        name = title.lstrip("-").replace("-", "_") if title.startswith("--") else ""
        width = 1 if equals or _FLAGS.get(name) == 0 else 2
        group = list(words[at : at + width])
        if name == PRESET and (equals or len(group) > 1):
            preset = Word(value, words[at].line) if equals else group[1]
        elif name in _FLAGS or name in TRL_LAUNCH or name.startswith("fsdp_"):
            options += group
        else:
            arguments.append(words[at])
            width = 1
        at += width
    if preset is not None:
        options = [*_preset(preset, options), *options]
    return options, arguments


def _preset(given: Word, others: Sequence[Word]) -> list[Word]:
    """Return the options of a preset without those of `others`, or of accelerate for a file."""
    if given.problem or given.text not in TRL_PRESETS:
        return [Word("--config_file", given.line), given]
    named = {word.text.partition("=")[0] for word in others}
    return [
        Word(f"--{name}" if value is True else f"--{name}={value}", given.line)
        for name, value in TRL_PRESETS[given.text].items()
        if f"--{name}" not in named
    ]


def preset_options(given: ConfigValue) -> dict[str, ConfigValue]:
    """Return the options of accelerate for a preset that TRL's YAML names."""
    preset = TRL_PRESETS.get(str(given.value), {"config_file": given.value})
    return {name: replace(given, name=name, value=value) for name, value in preset.items()}
