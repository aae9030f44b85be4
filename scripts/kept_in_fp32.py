"""Write zerotools/io/huggingface/kept_in_fp32.json, from the model classes of transformers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from zerotools.io.huggingface.config_json import ALWAYS, KEPT_TABLE

_ATTRIBUTES = {
    "_keep_in_fp32_modules_strict": "16 bits",
    "_keep_in_fp32_modules": "fp16",
}
_MODEL_TYPE = re.compile(r'^    model_type = "([^"]+)"', re.MULTILINE)


def table() -> dict[str, dict[str, list[str]]]:
    """For each type of model: the parts of names that stay in fp32 in a model of 16 bits, and those
    that do so only in fp16. Parts of the names that a model has on the Hub follow those that it has
    in memory."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations
    found: dict[str, dict[str, list[str]]] = {}
    for folder in sorted(Path(spec.submodule_search_locations[0], "models").iterdir()):
        kept = _kept_in(folder)
        for path in sorted(folder.glob("configuration_*.py")):
            for kind in _MODEL_TYPE.findall(path.read_text("utf-8")):
                words = {word: sorted(names) for word, names in sorted(kept.items())}
                whole = {word: [*names, *_on_hub(kind, names)] for word, names in words.items()}
                others = _on_hub(kind, ALWAYS)
                if others:
                    whole["16 bits"] = list(dict.fromkeys([*whole.get("16 bits", ()), *others]))
                if whole:
                    found[kind] = whole
    return dict(sorted(found.items()))


def _on_hub(kind: str, names: Collection[str]) -> list[str]:
    """The parts of names on the Hub that transformers renames to one of `names`."""
    found = {}
    for each in get_checkpoint_conversion_mapping(kind) or ():
        if not isinstance(each, WeightRenaming):
            continue
        source, target = (_plain(one[0]) for one in (each.source_patterns, each.target_patterns))
        is_kept = any(f".{name}." in f".{target}." for name in names)
        if is_kept and re.fullmatch(r"[\w.]+", source):
            found[source] = None
    return list(found)


def _plain(pattern: str) -> str:
    """A pattern without the characters that are not parts of names."""
    return re.sub(r"\\(?=\W)", "", pattern).strip(".^$")


def _kept_in(folder: Path) -> dict[str, set[str]]:
    kept: dict[str, set[str]] = {}
    for path in folder.glob("modeling_*.py"):
        text = path.read_text("utf-8")
        if "_keep_in_fp32_modules" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                word = _ATTRIBUTES.get(node.targets[0].id)
                names = ast.literal_eval(node.value) if word else None
                if word and names:
                    kept.setdefault(word, set()).update(names)
    return kept


def text() -> str:
    """The file: a line for each type."""
    lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in table().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    KEPT_TABLE.write_text(text(), "utf-8")
