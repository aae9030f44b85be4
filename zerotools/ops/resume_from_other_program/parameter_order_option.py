"""Read the order of parameters that the user gives for numbered optimizer state:

    --order model    the order of registration in the model that config.json names
    --order FILE     names, one per line; an empty line ends a param group

For `model`, a separate process builds the model with transformers, without values, and lists its
parameters.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.adapter_tensor_names import adapter_names
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.formats.torch_optimizers import STATE_ROLE, WEIGHT_ROLES, Shape
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import read_user_file
from zerotools.io.huggingface.config_json import LARGEST_CONFIG, TRANSFORMERS_SECONDS
from zerotools.io.huggingface.model_sidecars import CONFIG

MODEL = "model"
"""The value of `--order` for the order of the model."""
_LONGEST_REASON = 300
ADVICE = "pass --order FILE, with one name per line in the order of the optimizer"

_PROGRAM = """
import json, re, sys, warnings
warnings.filterwarnings("ignore")
import torch, transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
tree = json.load(sys.stdin)
tree.pop("quantization_config", None)
config = CONFIG_MAPPING[tree["model_type"]].from_dict(tree)
own = getattr(transformers, (tree.get("architectures") or [""])[0], None)
undecayed = re.compile(r"bias|layernorm|rmsnorm|(?:^|[.])norm(?:$|[.])|_norm(?:$|[.])")

def decayed(module):
    for prefix, child in module.named_children():
        if not isinstance(child, nn.LayerNorm):
            found = (f"{prefix}.{name}" for name in decayed(child))
            yield from (name for name in found if not undecayed.search(name.lower()))
    yield from (name for name in module._parameters if not undecayed.search(name.lower()))

with torch.device("meta"):
    if isinstance(own, type) and issubclass(own, transformers.PreTrainedModel):
        model = own(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
model.tie_weights()
shapes = [[name, list(p.shape)] for name, p in model.named_parameters() if p.requires_grad]
known = {name for name, _ in shapes}
print(json.dumps({
    "class": type(model).__name__,
    "version": transformers.__version__,
    "parameters": shapes,
    "decayed": [name for name in decayed(model) if name in known],
}))
"""


@dataclass(frozen=True)
class AskedOrder:
    """An order of parameter names that the user requested.

    Attributes:
        sections: the names, in one list for each param group if the file has groups.
        shapes, decayed: as in `NameOrder`; None if the order is from a file.
        known_by: a phrase for the source of the names.
    """

    sections: Sequence[Sequence[str]]
    known_by: str
    shapes: Mapping[str, Shape] | None = None
    decayed: frozenset[str] | None = None

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return [name for section in self.sections for name in section]


def asked_order(asked: str, source: Checkpoint, given: Mapping[str, Path]) -> AskedOrder:
    """Return the order of parameters that `--order` requests with the value `asked`. `given` are
    files of the model that the user named.

    Raises:
        BadRequest: the file cannot be read, is empty, or has a name twice; config.json does not
            exist; or transformers does not know the model.
        BadFile: a file is not a regular file, or too large.
    """
    if asked != MODEL:
        return AskedOrder(read_order(Path(asked)), f"the names in {asked}")
    config = _config(source, given)
    if config is None:
        raise BadRequest(
            f"--order model needs the {CONFIG} of the model, which is not in {source.origin.path} "
            f"or next to it; pass --config-dir DIR, or {ADVICE}"
        )
    return _of_model(config)


def _config(source: Checkpoint, given: Mapping[str, Path]) -> Path | None:
    return given.get(CONFIG) or source.own_config


def how_to_name(source: Checkpoint, given: Mapping[str, Path]) -> str:
    """Return a sentence for the user: how to give parameter names for numbered optimizer state."""
    names = (key.name for key in source.tensors if key.role not in (*WEIGHT_ROLES, STATE_ROLE))
    first = next((f" ({name}, ...)" for name in names), "")
    where = " with --config-dir DIR" if _config(source, given) is None else ""
    model = (
        f"--order model{where} if the optimizer got the parameters in the order of the model of "
        f"{CONFIG}, or "
    )
    return (
        f"{source.origin.path} has numbers instead of weight names in its optimizer "
        f"state{first}, and no file has the names; pass "
        f"{'' if adapter_names(source.tensors) else model}--order FILE with the names in the "
        "order of the optimizer: one per line, and an empty line between param groups"
    )


def read_order(path: Path) -> list[list[str]]:
    """Read a file with one parameter name in each line. Return the names in sections, which empty
    lines divide.

    Raises:
        BadRequest: the file cannot be read, is empty, or has a name twice.
        BadFile: the path is not a regular file, or the file is too large.
    """
    try:
        lines = read_user_file(path).decode().splitlines()
    except UnicodeDecodeError:
        raise BadRequest(f"{path} is not UTF-8 text") from None
    sections: list[list[str]] = [[]]
    known: set[str] = set()
    for line in lines:
        name = line.strip()
        if name in known:
            raise BadRequest(f"{path} has {name} twice; remove one of them")
        if name:
            sections[-1].append(name)
            known.add(name)
        elif sections[-1]:
            sections.append([])
    if not known:
        raise BadRequest(f"{path} has no names of parameters; write one per line")
    return [section for section in sections if section]


def _of_model(config: Path) -> AskedOrder:
    try:
        tree = read_json(config, LARGEST_CONFIG)
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(f"--order model: {config} cannot be read: {error!s:.200}") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("model_type"), str):
        raise BadRequest(f"--order model: {config} does not have a model_type; {ADVICE}")
    found = _built(config, tree)
    shapes = {str(name): tuple(shape) for name, shape in found["parameters"]}
    said = f"the parameters in {found['class']} of transformers {found['version']}"
    return AskedOrder([list(shapes)], f"the order of {said}", shapes, frozenset(found["decayed"]))


def _built(config: Path, tree: Mapping[str, Any]) -> Any:
    """Build the model with transformers in a separate process. Return the name of its class, the
    version of transformers, the names and shapes of the model's trained parameters, and the names
    of those with weight decay.

    `tree` is the content of the config.json at `config`.

    Raises:
        BadRequest: transformers cannot build the model.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM],
            input=json.dumps(tree),
            text=True,
            capture_output=True,
            timeout=TRANSFORMERS_SECONDS,
            check=False,
        )
        why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {TRANSFORMERS_SECONDS:g} s"
    except OSError as error:
        why = str(error)
    except (ValueError, IndexError):
        pass  # its standard error has the reason
    raise BadRequest(
        f"--order model: transformers of {sys.executable} cannot build the model of {config} "
        f"({why[:_LONGEST_REASON]}); {ADVICE}"
    )
