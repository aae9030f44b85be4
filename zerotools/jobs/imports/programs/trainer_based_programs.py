"""Read the arguments of programs that are built on the Trainer, but have other argument names or
defaults.

These are finetune.py of alpaca-lora and programs derived from it, finetune.py of Qwen, and the
programs of DeepSpeed-Chat, MedicalGPT, TRL (including the command `trl sft`) and the alignment
handbook. Programs are recognised by their names or arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.jobs.imports.programs.find_launcher import StartCommand
from zerotools.jobs.imports.programs.launcher_options import flags_document
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.shell_parser import Word
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import KeyOutcome, ReportRow
from zerotools.jobs.launcher_keys.launcher_flags import WORDS_AFTER
from zerotools.jobs.launcher_keys.program_keys import (
    ALPACA_LORA_DEFAULTS,
    ALPACA_LORA_NAMES,
    DEEPSPEED_CHAT_DEFAULTS,
    DEEPSPEED_CHAT_DPO,
    DEEPSPEED_CHAT_DPO_RATE,
    DEEPSPEED_CHAT_OWN,
    DPO_NAMES,
    DPO_RATE,
    MEDICAL_COLUMNS,
    MEDICAL_DEFAULTS,
    MEDICAL_DPO,
    MEDICAL_DPO_IGNORED,
    MEDICAL_DPO_SETS,
    MEDICAL_IGNORED,
    MEDICAL_TEXT,
    QWEN_DEFAULTS,
    QWEN_TARGETS,
    SFT_RATE,
    TRL_DEFAULTS,
    TRL_LAUNCH,
    TRL_OWN,
    TRL_PRESETS,
)
from zerotools.jobs.launcher_keys.trainer_keys import TRAINERS_OWN

_QWEN = re.compile(r"(?i)\b(qwen(?:1\.5)?)-(?!vl)")
_MEDICAL_OWN = frozenset(("model_name_or_path", "train_file_dir"))
_OF_TRL = re.compile(r"(?:^|[._/])(?:run_)?(sft|dpo)(?:\.py)?")


PRESET = "accelerate_config"
SCRIPTS = "trl.scripts."
_FLAGS = WORDS_AFTER["accelerate"]


def read_as_known(run: RunSettings, program: str) -> RunSettings:
    """Return `run` with the argument names and defaults of the program.

    If the program is not known here, return `run` unchanged.
    """
    given = run.given
    if "base_model" in given and TRAINERS_OWN.isdisjoint(given.keys() - {"output_dir"}):
        return _alpaca_lora(run)
    if "model_name_or_path" in given and not DEEPSPEED_CHAT_OWN.isdisjoint(given):
        return _deepspeed_chat(run)
    model = given.get("model_name_or_path")
    of_qwen = None if model is None else _QWEN.search(str(model.value))
    if program.endswith("finetune.py") and of_qwen is not None:
        return _qwen(run, of_qwen[1].lower())
    if _MEDICAL_OWN.issubset(given):
        return _medical(run, program)
    of_trl = _OF_TRL.search(program)
    is_named = of_trl is not None and program.endswith(of_trl[0])
    is_own = program.startswith(SCRIPTS) or not TRL_OWN.isdisjoint(given)
    if of_trl is not None and is_named and is_own:
        return _trl(run, is_dpo=of_trl[1] == "dpo")
    return run


def _alpaca_lora(run: RunSettings) -> RunSettings:
    given = _renamed(run.given, ALPACA_LORA_NAMES)
    given.setdefault("use_lora", _always(run, "use_lora", True))
    given.setdefault(
        "lora_target_modules", _always(run, "lora_target_modules", ["q_proj", "v_proj"])
    )
    run.findings.differences.append(
        "base model: the program quantises it to 8 bits, the job does not; lora.frozen_precision "
        '= "nf4" quantises it to 4 bits'
    )
    return replace(
        run, given=given, defaults=ALPACA_LORA_DEFAULTS, who="alpaca-lora", examples=True
    )


def _qwen(run: RunSettings, model: str) -> RunSettings:
    given = dict(run.given)
    if "use_lora" in given:
        given.setdefault(
            "lora_target_modules",
            _always(run, "lora_target_modules", list(QWEN_TARGETS[model])),
        )
        run.findings.differences.append(
            "adapters: without --q_lora, the program also trains the embeddings of a model that "
            "is not named chat"
        )
    return replace(
        run, given=given, defaults=QWEN_DEFAULTS, who="Qwen's finetune.py", examples=True
    )


def _deepspeed_chat(run: RunSettings) -> RunSettings:
    is_dpo = not DEEPSPEED_CHAT_DPO.isdisjoint(run.given)
    given = _renamed(run.given, DPO_NAMES) if is_dpo else dict(run.given)
    padding = given.pop("num_padding_at_beginning", None)
    if padding is not None:
        run.findings.unsupported.append(
            f"{padding.label}: trains a reward model, which jobs do not support; run the program "
            "with --as script"
        )
    kind = given.pop("dtype", None)
    if kind is not None and kind.value in ("fp16", "bf16"):
        given[str(kind.value)] = replace(kind, value=True)
    if "lora_dim" in given and str(given["lora_dim"].value) == "0":
        del given["lora_dim"]  # without adapters
    if "lora_dim" in given:
        run.findings.differences.append(
            "adapters: the program adds them to every linear layer below --lora_module_name "
            "(here: lora.target_modules) and uses --lora_learning_rate; without "
            "--only_optimize_lora it also trains all other weights"
        )
    rate = {"learning_rate": DEEPSPEED_CHAT_DPO_RATE} if is_dpo else {}
    return replace(
        run,
        given=given,
        defaults={**DEEPSPEED_CHAT_DEFAULTS, **rate},
        who="DeepSpeed-Chat",
        examples=True,
        preferences=is_dpo,
    )


def is_unread_trl(program: str) -> bool:
    """Return whether the program is a TRL script for a training method that jobs do not
    support, such as reward models.
    """
    return program.startswith(SCRIPTS) and program.removeprefix(SCRIPTS) not in ("sft", "dpo")


def _medical(run: RunSettings, program: str) -> RunSettings:
    """Convert the arguments of MedicalGPT to arguments of the Trainer.

    In MedicalGPT, the data arguments are directories, and the name of the program shows the
    training stage.
    """
    stage = next((name for name in MEDICAL_DEFAULTS if name in Path(program).name), None)
    if stage is None:
        run.findings.unsupported.append(
            f"{run.source}: the arguments of {program} are not read; known programs: "
            f"{', '.join(MEDICAL_DEFAULTS)}; run the program with --as script"
        )
        return run
    is_dpo = stage == MEDICAL_DPO
    given = dict(run.given)
    for name in ("train_file", "validation_file"):
        if (directory := given.pop(f"{name}_dir", None)) is not None:
            kinds = ("txt", "json", "jsonl") if stage == MEDICAL_TEXT else ("json", "jsonl")
            files = [f"{directory.value}/**/*.{kind}" for kind in kinds]
            found = [file for file in files if any(_files(run, file))] or files
            given[name] = replace(directory, name=name, value=found)
    if is_dpo:
        given |= {name: _always(run, name, each) for name, each in MEDICAL_COLUMNS.items()}
        for name, value in MEDICAL_DPO_SETS.items():
            given.setdefault(name, _always(run, name, value))
        run.findings.differences.append(
            "prompts: only the question; the job does not read system and history of a record"
        )
    if stage == MEDICAL_TEXT:
        given.pop("packing", None)  # text is one stream here, too
    given = _renamed(given, {"qlora": "load_in_4bit", "neft_alpha": "neftune_noise_alpha"})
    given.setdefault("use_peft", _always(run, "use_lora", True))
    if not is_dpo:
        given.setdefault("target_modules", _always(run, "target_modules", "all"))
    for name, why in (MEDICAL_DPO_IGNORED if is_dpo else MEDICAL_IGNORED).items():
        if (each := given.pop(name, None)) is not None:
            row = ReportRow(KeyOutcome.IGNORED, each.title, each.place, each.value, None, why)
            run.findings.rows.append(row)
    return replace(
        run,
        given=given,
        defaults=MEDICAL_DEFAULTS[stage],
        who="MedicalGPT",
        examples=stage != MEDICAL_TEXT,
        preferences=is_dpo,
    )


def _files(run: RunSettings, pattern: str) -> Iterator[Path]:
    head, _, tail = pattern.partition("/**/")
    return run.found(head).glob(f"**/{tail}")


def _trl(run: RunSettings, *, is_dpo: bool) -> RunSettings:
    run = _as_launched(run)
    given = _renamed(run.given, DPO_NAMES) if is_dpo else dict(run.given)
    defaults: dict[str, Any] = {
        **TRL_DEFAULTS,
        "learning_rate": DPO_RATE if is_dpo else SFT_RATE,
    }
    mixer = given.pop("dataset_mixer", None)  # an argument of the alignment handbook
    if mixer is not None and isinstance(mixer.value, Mapping):
        given["dataset_name"] = replace(mixer, value=list(mixer.value))
    loss, known = given.pop("loss_type", None), "sigmoid" if is_dpo else "nll"
    if loss is not None and loss.value not in (known, [known]):
        run.findings.unsupported.append(
            f"{loss.label} = {loss.value}: is not supported; supported: {known}"
        )
    return replace(
        run,
        given=given,
        defaults=defaults,
        who="TRL",
        examples=True,
        preferences=is_dpo,
    )


def _as_launched(run: RunSettings) -> RunSettings:
    """Move the accelerate options in TRL's YAML to the options of `accelerate launch`, and return
    the changed settings.
    """
    given = dict(run.given)
    count, preset = given.pop("num_processes", None), given.pop(PRESET, None)
    if preset is not None:
        options = preset_options(preset)
        options |= {} if count is None else {"num_processes": count}
        file, document = flags_document("accelerate", options, preset.place, run.findings)
        run = replace(run, accelerate=document, accelerate_file=file)
        count = options.get("num_processes")
    if count is not None and isinstance(count.value, int) and run.ranks is None:
        run = replace(run, ranks=count, launcher="")
    return replace(run, given=given)


def _renamed(given: Mapping[str, ConfigValue], names: Mapping[str, str]) -> dict[str, ConfigValue]:
    return {names.get(name, name): each for name, each in given.items()}


def _always(run: RunSettings, name: str, value: Any) -> ConfigValue:
    """Return an argument that users cannot set, with the value that the program always uses."""
    place = run.source if run.program is None else run.program.place
    title = "the program" if run.program is None else Path(run.program.name).name
    return ConfigValue(name, title, place, value)


def as_accelerate(start: StartCommand) -> StartCommand:
    """Return the `accelerate launch` command that a command of TRL's console program (`trl`) runs.
    Return other commands unchanged.
    """
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
    """Split `words` into the options for accelerate and the arguments of the script."""
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
    """Return the options of the accelerate preset `given`, without options that are also in
    `others`. If `given` is a file, return the option `--config_file` with this file.
    """
    if given.problem or given.text not in TRL_PRESETS:
        return [Word("--config_file", given.line, written=f"--{PRESET}"), given]
    named = {word.text.partition("=")[0] for word in others}
    return [
        Word(f"--{name}" if value is True else f"--{name}={value}", given.line)
        for name, value in TRL_PRESETS[given.text].items()
        if f"--{name}" not in named
    ]


def preset_options(given: ConfigValue) -> dict[str, ConfigValue]:
    """Return the options of `accelerate launch` for the preset named in TRL's YAML."""
    preset = TRL_PRESETS.get(str(given.value), {"config_file": given.value})
    return {name: replace(given, name=name, value=value) for name, value in preset.items()}
