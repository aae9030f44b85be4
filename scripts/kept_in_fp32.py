"""Write zerotools/io/huggingface/kept_in_fp32.json, from the model classes of transformers."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

from zerotools.io.huggingface.config_json import KEPT_TABLE

_ATTRIBUTES = {
    "_keep_in_fp32_modules_strict": "16 bits",
    "_keep_in_fp32_modules": "fp16",
}
_MODEL_TYPE = re.compile(r'^    model_type = "([^"]+)"', re.MULTILINE)


def table() -> dict[str, dict[str, list[str]]]:
    """For each type of model: the patterns of names that stay in fp32 in a model of 16 bits, and
    those that do so only in fp16."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations
    found: dict[str, dict[str, list[str]]] = {}
    for folder in sorted(Path(spec.submodule_search_locations[0], "models").iterdir()):
        kept = _kept_in(folder)
        if not kept:
            continue
        for path in sorted(folder.glob("configuration_*.py")):
            for kind in _MODEL_TYPE.findall(path.read_text("utf-8")):
                found[kind] = {word: sorted(names) for word, names in sorted(kept.items())}
    return dict(sorted(found.items()))


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
