"""Find the Python files that a model of the Hub with its own code needs.

The `auto_map` of config.json, or of the tokenizer's or the processor's config, names classes such
as `modeling_foo.FooModel` for a file `modeling_foo.py` in the same directory. transformers loads
such a model only if the file and its relative imports are there. zerotools copies these files, and
does not run them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import read_regular, refused_link_target

SUFFIX = ".py"
CONFIGS = (
    "config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json",
    "video_preprocessor_config.json",
)  # fmt: skip
"""The files that may name code."""
_LARGEST = 2**24
# A class in a file of the model; `user/repository--modeling.Model` is in another repository.
_CLASS = r"([A-Za-z_]\w*)\.\w+"
# The relative imports that transformers follows.
_IMPORTS = re.compile(
    r"^[ \t]*(?:import[ \t]+\.(\w+)[ \t]*$|from[ \t]+\.(\w+)[ \t]+import\b)", re.MULTILINE
)


def code_files(configs: Iterable[Path], present: Collection[str]) -> dict[str, Path]:
    """Return file name -> path of the Python files that the JSON files `configs` of one directory
    name, and of the files that these Python files import. `present` are the names in this
    directory.

    Links to other places and configs that cannot be read are ignored.
    """
    found: dict[str, Path] = {}
    for config in configs:
        waiting = list(_named_files(config))
        while waiting:
            name = waiting.pop()
            path = config.with_name(name)
            if name in found or name not in present or not _is_own(path):
                continue
            found[name] = path
            waiting += _imports_of(path)
    return dict(sorted(found.items()))


def lacking_code(sidecars: Mapping[str, Path]) -> list[str]:
    """Return the names of the Python files that config and tokenizer name, but that are not among
    the sidecar files of the model."""
    named = (name for each in CONFIGS if each in sidecars for name in _named_files(sidecars[each]))
    return [name for name in dict.fromkeys(named) if name not in sidecars]


def _is_own(path: Path) -> bool:
    return path.is_file() and refused_link_target(path, chosen_name=True) is None


def _named_files(config: Path) -> Iterator[str]:
    """Yield the names of the Python files with the classes that a config names."""
    try:
        waiting: list[Any] = [read_json(config, _LARGEST)]
    except (OSError, BadFile, ValueError, RecursionError):
        return
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        if not isinstance(each, dict):
            continue
        for key, value in each.items():
            classes: list[object] = [value] if key == "impl" else []
            if key == "auto_map" and isinstance(value, dict):
                for one in value.values():  # a class, or those of a slow and a fast tokenizer
                    classes += one if isinstance(one, list) else [one]
            else:
                waiting.append(value)
            yield from (f"{match[1]}{SUFFIX}" for one in classes if (match := _class_in(one)))


def _class_in(value: object) -> re.Match[str] | None:
    return re.fullmatch(_CLASS, value) if isinstance(value, str) else None


def _imports_of(path: Path) -> list[str]:
    try:
        text = read_regular(path, _LARGEST).decode("utf-8", "replace")
    except (OSError, BadFile):
        return []
    return [f"{match[1] or match[2]}{SUFFIX}" for match in _IMPORTS.finditer(text)]
