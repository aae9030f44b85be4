"""Let transformers try to load a model from tensors that have shapes but no values.

transformers runs in a separate process on torch's meta device. This needs no memory for weights,
and takes hardly more time than the imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.huggingface.config_json import TRANSFORMERS_SECONDS
from zerotools.maps.expression_views import Shape
from zerotools.maps.hub_tensor_names import NameFaults

_LONGEST_REASON = 300
_NEEDED = ("transformers", "torch", "accelerate")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_DEEPSPEED": "false", "ACCELERATE_USE_FSDP": "false",
}  # fmt: skip

_PROGRAM = """
import json, re, sys, tempfile, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def fail(why, key="refused"):
    print(json.dumps({key: why}))
    sys.exit()


asked = json.load(sys.stdin)
tree = asked["config"]
if tree["model_type"] not in CONFIG_MAPPING:
    fail(f"transformers {transformers.__version__} does not know model_type {tree['model_type']}")

import torch
from transformers import modeling_utils
from transformers.models.auto import modeling_auto as auto

transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.logging.disable_progress_bar()
# Ends a load whose conversions fail, before its result is known.
if hasattr(modeling_utils, "log_state_dict_report"):
    modeling_utils.log_state_dict_report = lambda *args, **kwargs: None


def classes_of(config, named):
    mappings = [getattr(auto, f"MODEL_FOR_{kind}_MAPPING") for kind in
                ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
                if hasattr(auto, f"MODEL_FOR_{kind}_MAPPING")] + [auto.MODEL_MAPPING]
    usual = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    usual = [each for one in usual for each in (one if isinstance(one, tuple) else (one,))]
    if not named:
        return usual[:1]
    found = getattr(transformers, named, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        fail(f"transformers {transformers.__version__} has no model {named}")
    return [found, *usual[:1]] if found in usual[1:] else [found]


def ties_of(model):
    model.tie_weights()
    said = getattr(model, "all_tied_weights_keys", None)
    if isinstance(said, dict) and said:
        return dict(said)
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    patterns = getattr(model, "_tied_weights_keys", None) or []
    found = {}
    for names in groups.values():
        first = next((n for n in names if not any(re.search(p, n) for p in patterns)), names[0])
        found.update({name: first for name in names if name != first})
    return found


def tried(kind, config, ties, names):
    state, renamed = {}, {}
    for name, shape in names.items():
        source = ties.get(name)
        if source is not None and source not in names and source not in state:
            renamed[name] = source
        state[renamed.get(name, name)] = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    _, info = kind.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True,
        ignore_mismatched_sizes=True, device_map={"": "meta"},
    )
    if info["error_msgs"]:
        fail(str(info["error_msgs"][0]))
    wrong = [[name, list(there), list(needed)] for name, there, needed in info["mismatched_keys"]]
    back = {new: old for old, new in renamed.items()}
    return {
        "kind": kind.__name__, "ties": ties, "renamed": renamed, "wrong": sorted(wrong),
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(back.get(name, name) for name in info["unexpected_keys"]),
    }


def built(make, is_needed=True):
    try:
        with torch.device("meta"):
            return make()
    except ImportError:  # of a package that this model needs
        raise
    except Exception as error:  # whatever a class raises over this config is the answer
        if not is_needed:
            return None
        fail(f"{type(error).__name__}: {error}", "unbuildable")


with tempfile.TemporaryDirectory() as folder:  # the file has numbers that JSON has not
    Path(folder, "config.json").write_text(json.dumps(tree))
    config = built(lambda: CONFIG_MAPPING[tree["model_type"]].from_pretrained(folder))
answers = []
for number, kind in enumerate(classes_of(config, asked["class"])):
    # Another class than the named one may need another config.
    ties = built(lambda: ties_of(kind(config)), is_needed=number == 0)
    if ties is not None:
        answers += [tried(kind, config, ties, names) for names in asked["names"]]
print(json.dumps({"answers": answers, "count": len(asked["names"])}))
"""


class Unbuildable(BadRequest):
    """transformers knows the type of the model, but cannot build a model from this config.json."""


@dataclass(frozen=True)
class Trial:
    """The result of one attempt to load tensors into a model.

    `faults` are the missing and unexpected names, and the names of tensors with a wrong shape.
    `ties` is tied name -> name of the tensor that holds its values. `renamed` has only those
    entries of `ties` for which the checkpoint stores the values under the tied name.
    """

    faults: NameFaults
    ties: Mapping[str, str]
    renamed: Mapping[str, str]


def trial_loads(
    config: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Shape]],
    python: str = sys.executable,
) -> list[Trial]:
    """Let transformers load the model of `config` from each of `candidates`, which are names and
    shapes of tensors. Return a result for each, with the model class that fits best.

    Raises:
        Unsupported: transformers is not installed, or does not know the model.
        Unbuildable: transformers knows the model's type, but cannot build it from this config.
    """
    lacking = [package for package in _NEEDED if find_spec(package) is None]
    if lacking:
        raise Unsupported(f"{' and '.join(lacking)} {'are' if lacking[1:] else 'is'} not installed")
    kind = config["model_type"]
    if not _may_know(kind):
        raise Unsupported(f"transformers does not know model_type {kind}")
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else ""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    asked = {"config": plain, "class": name, "names": candidates}
    try:
        done = subprocess.run(
            [python, "-P", "-c", _PROGRAM],
            input=json.dumps(asked),
            env={**os.environ, **_ENVIRONMENT},
            text=True,
            capture_output=True,
            timeout=TRANSFORMERS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unsupported(
            f"transformers did not answer within {TRANSFORMERS_SECONDS:g} s"
        ) from None
    except OSError as error:
        raise Unsupported(f"{python} cannot be started: {error.strerror}") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise Unsupported(
            f"transformers cannot build the model: {said:.{_LONGEST_REASON}}"
        ) from None
    if "refused" in answer:
        raise Unsupported(answer["refused"])
    if "unbuildable" in answer:
        reason = " ".join(answer["unbuildable"].split())
        raise Unbuildable(f"{reason:.{_LONGEST_REASON}}")
    found = [_trial(each) for each in answer["answers"]]
    count = answer["count"]
    return [min(found[n::count], key=lambda each: each.faults.count) for n in range(count)]


def _may_know(kind: str) -> bool:
    """Return whether the source of transformers' tables of models contains the model type `kind`;
    True if there are no tables.

    Reading this source is much faster than starting a process that imports transformers.
    """
    spec = find_spec("transformers")
    places = spec.submodule_search_locations if spec is not None else None
    texts = [each for place in places or () for each in Path(place, "models/auto").glob("*.py")]
    return not texts or any(f'"{kind}"' in each.read_text("utf-8") for each in texts)


def _trial(answer: Mapping[str, Any]) -> Trial:
    wrong = tuple((name, tuple(there), tuple(needed)) for name, there, needed in answer["wrong"])
    faults = NameFaults(tuple(answer["missing"]), tuple(answer["unexpected"]), wrong)
    return Trial(faults, answer["ties"], answer["renamed"])
