"""The small files of a model that go with its weights into each checkpoint, and so into exports."""

from __future__ import annotations

from pathlib import Path

from zerotools.io.huggingface.model_sidecars import model_sidecars, sidecar_kind
from zerotools.jobs.tables.data import BYTES, tokenizer_of
from zerotools.jobs.tables.spec import JobSpec


def sidecars_of(spec: JobSpec) -> dict[str, Path]:
    """Return the files next to the config, by name.

    They are the tokenizer for the data of `spec`, and other files of the model's directory. Files
    about token ids are left out if the data uses another tokenizer: `generation_config.json` names
    the end tokens of a text.
    """
    named, own = tokenizer_of(spec.data, spec.model.path), spec.model.path
    found = {} if named is None or named == BYTES else _of_kinds(Path(named), "tokenizer")
    if own is None:
        return found
    if named != BYTES and spec.data.tokenizer in (None, own):
        found |= _of_kinds(Path(own), "tokenizer", "generation")
    return found | _of_kinds(Path(own), "processor")


def _of_kinds(directory: Path, *kinds: str) -> dict[str, Path]:
    there = model_sidecars(directory)
    return {name: path for name, path in there.items() if sidecar_kind(name) in kinds}
