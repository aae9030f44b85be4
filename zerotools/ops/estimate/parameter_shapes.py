"""The shapes of a model's parameters, from a number of parameters, a config.json, a model directory
or a checkpoint. No tensor data is read.

- A config of a known architecture gives all shapes.
- The headers of a checkpoint give the shapes of any model.
- A number of parameters ("7B") stands for a Llama-like model of that size.
- For a config of an unknown architecture, a separate process builds the model with transformers on
  torch's meta device.

`with_adapters` adds LoRA: an adapter of rank r on a matrix of n by m is two matrices, r by m and n
by r (Hu et al. 2021), and all other weights are frozen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG, TRANSFORMERS_SECONDS
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.estimate.model_families import Architecture, architecture_of
from zerotools.ops.estimate.state_memory import Parameter

CONFIG = "config.json"
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
LONGEST_REASON = 300
USUAL_LENGTH = 2048
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMbBtT])")
_IN_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?[bBmM])(?![a-zA-Z0-9])")
_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BLOCK = re.compile(r"^(.*?\.?(?:layers|layer|h|blocks|block)\.\d+)\.")
_VOCABULARY = 32_000
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.distcp", "latest", "global_step*")

_PROGRAM = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
tree = json.load(sys.stdin)
config = CONFIG_MAPPING[tree["model_type"]].from_dict(tree)
import torch, transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
kind, known = AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING
if config.is_encoder_decoder:
    kind, known = AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
own = None
if type(config) not in known:  # images, sound: no language model
    own = getattr(transformers, sys.argv[1], None)
is_model = isinstance(own, type) and issubclass(own, transformers.PreTrainedModel)
with torch.device("meta"):
    if is_model:
        model = own(config)
    else:
        model = (kind if type(config) in known else AutoModel).from_config(config)
model.tie_weights()
shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]
print(json.dumps([type(model).__name__, shapes]))
"""


@dataclass(frozen=True)
class ModelShape:
    """The parameters of a model. Tied parameters appear once.

    `architecture` is None if it is unknown. `notes` are sentences on assumptions. `config` is the
    config of a Llama-like model, if only a size such as "7B" was given.
    """

    source: str
    parameters: tuple[Parameter, ...]
    architecture: Architecture | None
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None

    @property
    def count(self) -> int:
        """The number of elements in all parameters."""
        return sum(parameter.numel for parameter in self.parameters)

    @property
    def usual_length(self) -> int:
        """The sequence length in tokens if the user gives none: `USUAL_LENGTH`, or the model's
        largest length if that is smaller."""
        positions = 0 if self.architecture is None else self.architecture.positions
        return min(positions or USUAL_LENGTH, USUAL_LENGTH)


def cut_by_tensor_ranks(model: ModelShape, tensor_ranks: int) -> ModelShape:
    """Return the model with the matrices marked that tensor-parallel ranks divide: all matrices in
    blocks. Embeddings and head count as undivided."""
    if tensor_ranks == 1:
        return model
    cut = (replace(p, cut=0) if p.is_hidden else p for p in model.parameters)
    return replace(model, parameters=tuple(cut))


def size_in(name: str) -> str:
    """Return the size in the name of a model, such as "6B" (6 billion parameters); "7B" if it has
    none."""
    found = _IN_NAME.search(Path(name).name)
    return found[1].upper() if found else "7B"


def read_shape(model: str, python: str | None = sys.executable) -> ModelShape:
    """Return the shape of `model`: a number of parameters, a config.json, a model directory or a
    checkpoint.

    `python` is an interpreter with transformers, for unknown architectures; None: these are
    refused.

    Raises:
        BadRequest: `model` does not exist, or its config lacks a size.
        BadFile: a checkpoint is damaged.
        Unsupported: the architecture is not known, and transformers is not available; or `model` is
            in an object store.
    """
    path = Path(os.fspath(path_of(model)))
    if not path.exists():
        if _COUNT.fullmatch(model.strip()):
            return of_count(model.strip())
        raise BadRequest(
            f"{model}: is neither an existing file or directory nor a number of parameters; run "
            f"zerotools estimate {size_in(model)} for a model of that size"
        )
    if path.is_file() and path.suffix == ".json":
        return of_config(_config(path), str(path), python)
    beside = path / CONFIG
    if path.is_dir() and beside.is_file():
        config = _config(beside)
        if architecture_of(config, str(beside)) is not None or not _has_weights(path):
            return of_config(config, str(beside), python)
        return _of_checkpoint(path, f"model_type {config.get('model_type')!r}")
    return _of_checkpoint(path, "its architecture")


def of_config(
    config: Mapping[str, Any], source: str, python: str | None = sys.executable
) -> ModelShape:
    """Return the shape of the model that a Hugging Face `config` describes. `source` names the
    config in errors, which are those of `read_shape`."""
    inner = config.get("text_config")
    if not isinstance(config.get("model_type"), str):
        raise BadRequest(
            f"{source}: is not a model config: it has no model_type; name the config.json of a "
            "model"
        )
    architecture = architecture_of(config, source)
    named = _class_of(config)
    if architecture is not None:
        has_other_head = bool(named) and not named.endswith(_LANGUAGE_MODELS)
        other = [_of_another_class(source, "a language model", named)] if has_other_head else []
        parameters = tuple(architecture.parameters())
        return ModelShape(source, parameters, architecture, tuple(other))
    name = config["model_type"]
    built, parameters = _built(config, source, python)
    said = f"{source}: activations are unknown for model_type {name!r}"
    if config.get("quantization_config"):
        said += "; weights are counted as if they were not quantised"
    elif named in ("", built):
        said += "; the training state is exact"
        said += " and has all of the model's parts" if isinstance(inner, Mapping) else ""
    notes = (said,) if named in ("", built) else (said, _of_another_class(source, built, named))
    return ModelShape(source, parameters, None, notes)


def _class_of(config: Mapping[str, Any]) -> str:
    """Return the class of the saved model: the first name in `architectures` of a config. Return ""
    if the config has no such name."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""


def _of_another_class(source: str, counted: str, named: str) -> str:
    return (
        f"{source}: counted as {counted}, which is the model that a job trains; the config names "
        f"{named}"
    )


def of_count(text: str) -> ModelShape:
    """Return the shape of a Llama-like model with the number of parameters in `text`, such
    as "7B"."""
    match = _COUNT.fullmatch(text)
    assert match is not None
    count = int(float(match[1]) * _UNITS[match[2].lower()])
    if count < 10**6:
        raise BadRequest(f"{text}: is less than a million parameters; name a model instead")
    # 12 h^2 parameters a block and h / 128 blocks, as in published models of 1 B to 70 B.
    hidden = max(256, 128 * round((count * 128 / 12) ** (1 / 3) / 128))
    tied = 2 * _VOCABULARY * hidden > count // 3
    vocabulary = min(_VOCABULARY, count // 2 // hidden)
    outside = vocabulary * hidden * (1 if tied else 2) + hidden
    layers = max(1, round((count - outside) / (12 * hidden**2)))
    rest = (count - outside) // layers - 4 * hidden**2 - 2 * hidden
    shape = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 128,
        "intermediate_size": rest // (3 * hidden),
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }
    architecture = architecture_of(shape, text)
    assert architecture is not None
    parameters = architecture.parameters()
    # This gives the named number, within less than a row of each matrix of the MLPs.
    left = count - sum(parameter.numel for parameter in parameters)
    parameters += [
        Parameter(each) for each in ((left // hidden, hidden), (left % hidden,)) if each[0]
    ]
    said = (
        f"{text}: counted as a Llama-like model of {layers} layers with hidden size {hidden} and a "
        f"vocabulary of {vocabulary:,}; name its config.json for exact activations"
    )
    return ModelShape(text, tuple(parameters), architecture, (said,), shape)


def _config(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path}: is not JSON: {error}; copy or download it again") from None
    if not isinstance(found, dict):
        raise BadRequest(f"{path}: is not a JSON object; name the config.json of a model")
    return found


def _has_weights(path: Path) -> bool:
    return any(next(path.glob(pattern), None) is not None for pattern in _WEIGHT_FILES)


def _of_checkpoint(path: Path, what: str) -> ModelShape:
    from zerotools import formats  # a config needs none of them

    checkpoint = formats.read_any(path)
    record = formats.format_of(checkpoint).job_record(checkpoint)
    if record is not None and record.lora is not None and record.lora.base is not None:
        raise BadRequest(
            f"{path}: holds only adapters, without the shapes of their base model; name the job "
            f"file, or {record.lora.base.path}"
        )
    shapes = {
        key.name: tensor.shape
        for key, tensor in checkpoint.tensors.items()
        if key.role in ("param", "param16") and key.name not in checkpoint.aliases
    }
    if not shapes:
        raise BadRequest(f"{path}: has no weights; name the checkpoint of a model")
    parameters = _named(shapes)
    architecture = _own_architecture(checkpoint, parameters)
    said = (
        f"{path}: activations are unknown, because zerotools does not know all parts of {what}; "
        "the training state is exact"
    )
    notes = (said,) if architecture is None else ()
    return ModelShape(str(path), parameters, architecture, notes)


def _own_architecture(
    checkpoint: Checkpoint, parameters: Sequence[Parameter]
) -> Architecture | None:
    """Return the architecture in the checkpoint's config.json. Return None if zerotools does not
    know it, or if its shapes are not those of `parameters`."""
    if checkpoint.own_config is None:
        return None
    try:
        found = architecture_of(_config(checkpoint.own_config), str(checkpoint.own_config))
    except (BadRequest, BadFile, OSError):
        return None
    ours = Counter(parameter.shape for parameter in parameters)
    is_same = found is not None and ours == Counter(each.shape for each in found.parameters())
    return found if is_same else None


def _named(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Parameter, ...]:
    found = []
    for name, shape in shapes.items():
        block = _BLOCK.match(name)
        is_hidden = len(shape) == 2 and block is not None
        where = None if block is None else block[1]
        found.append(Parameter(shape or (1,), block=where, is_hidden=is_hidden))
    return tuple(found)


def _built(
    config: Mapping[str, Any], source: str, python: str | None
) -> tuple[str, tuple[Parameter, ...]]:
    """Build the model with transformers on the meta device, in a process of `python`. Return its
    class name and its parameters."""
    name, why = config["model_type"], "transformers was not tried"
    if python is not None:
        try:
            done = subprocess.run(
                [python, "-P", "-c", _PROGRAM, _class_of(config)],
                input=json.dumps(config),
                text=True,
                capture_output=True,
                timeout=TRANSFORMERS_SECONDS,
                check=False,
            )
            why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            kind, shapes = json.loads(done.stdout.splitlines()[-1])
            return kind, _named({name: tuple(shape) for name, shape in shapes})
        except subprocess.TimeoutExpired:
            why = f"it did not answer within {TRANSFORMERS_SECONDS:g} s"
        except OSError as error:
            why = str(error)
        except (ValueError, IndexError):
            pass  # its output has the reason
    raise Unsupported(
        f"{source}: zerotools does not know the shapes of model_type {name!r}, and transformers "
        f"of {python} could not compute them ({why[:LONGEST_REASON]}); name a checkpoint of the "
        "model, or a number of parameters such as 7B"
    )


_DEFAULT = ("q_proj", "v_proj")
_DEFAULTS = {
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj",),
}
"""The default targets of peft (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`)."""
ALL_LINEAR = "all-linear"


def with_adapters(
    model: ModelShape, rank: int, targets: Sequence[str] = (), *, packs_frozen: bool = False
) -> ModelShape:
    """Return the model with all weights frozen, and with adapters of rank `rank` on the linear
    layers `targets` (empty: those that peft chooses for most models). With `packs_frozen`, all
    matrices of the blocks are packed in 4 bits."""
    frozen = tuple(
        replace(each, is_trained=False, is_packed=packs_frozen and each.is_hidden)
        for each in model.parameters
    )
    architecture = model.architecture
    if architecture is None:
        said = "adapters are not counted, because the names of the model's layers are not known"
        return replace(model, parameters=frozen, notes=(*model.notes, said))
    adapters = tuple(
        Parameter(shape, block=str(layer), is_hidden=True)
        for layer in range(architecture.layers)
        for shape in _adapters(architecture, rank, tuple(targets))
    )
    return replace(model, parameters=frozen + adapters)


def _adapters(
    model: Architecture, rank: int, targets: tuple[str, ...]
) -> Iterator[tuple[int, int]]:
    wanted = targets or _DEFAULTS.get(model.model_type, _DEFAULT)
    ends = {target.rsplit(".", 1)[-1] for target in wanted}
    for name, rows, columns in _linear_layers(model):
        if ALL_LINEAR in wanted or name in ends:
            yield (rank, columns)
            yield (rows, rank)


def _linear_layers(model: Architecture) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the rows and the columns of each linear layer in a block."""
    hidden, queries, keys = model.hidden, model.queries, model.keys
    if "qkv" in model.family.joined:
        joined = {"gpt2": "c_attn", "gpt_neox": "query_key_value"}.get(model.model_type, "qkv_proj")
        yield (joined, queries + 2 * keys, hidden)
    else:
        yield ("q_proj", queries, hidden)
        yield ("k_proj", keys, hidden)
        yield ("v_proj", keys, hidden)
    yield ("o_proj", hidden, queries)
    if model.experts:
        return
    width = model.intermediate
    if "mlp" in model.family.joined:
        yield ("gate_up_proj", 2 * width, hidden)
    elif model.family.is_gated:
        yield ("gate_proj", width, hidden)
        yield ("up_proj", width, hidden)
    else:
        yield ("up_proj", width, hidden)
    yield ("down_proj", hidden, width)
