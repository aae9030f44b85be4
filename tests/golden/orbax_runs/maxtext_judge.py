"""Judge the layouts of MaxText by MaxText: its conversion, its model and its training.

    scripts/judge maxtext
    python -m tests.golden.orbax_runs.maxtext_judge .venv-maxtext/bin/python [CASE ...]

MaxText needs Python 3.12, in an environment that `scripts/judge` makes. `PYTHONPATH=DIR/src` takes
another version of its source. Each case is a tiny random model that transformers writes. The table
that this program prints says of each:

- to MaxText: the arrays of `to_maxtext` against those of `convert --to orbax --map-to maxtext`;
- from MaxText: the tensors of `to_huggingface` against those of `consolidate --map-to hf`, for one
  checkpoint;
- and back: the tensors of `consolidate --map-to hf`, from what `to_maxtext` wrote (or else from
  zerotools' item), against the first model;
- trained: the same from a run of MaxText's `train` that began with zerotools' item and has a
  learning rate of 0, against the item itself;
- logits: those of MaxText's model, with zerotools' item, against those of transformers.

A number stands for equal tensors, bit by bit; `rounded` are those within one unit in the last
place. The exit status is 1 if a tensor differs more, or if MaxText computed other logits or none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16
import numpy as np

Arrays = dict[str, np.ndarray]
TOKENS = [3, 14, 15, 92, 65, 35, 89, 79]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 163840,
    "rope_parameters": YARN,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
TIED = {"tie_word_embeddings": True}
GEMMA = {**TIED, "query_pre_attn_scalar": 8}
ARGUMENTS = {
    "hidden_size": "base_emb_dim",
    "intermediate_size": "base_mlp_dim",
    "num_hidden_layers": "base_num_decoder_layers",
    "num_attention_heads": "base_num_query_heads",
    "num_key_value_heads": "base_num_kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "normalization_layer_epsilon",
    "tie_word_embeddings": "logits_via_embedding",
    "num_local_experts": "num_experts",
    "num_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "base_moe_mlp_dim",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "n_shared_experts": "shared_experts",
    "first_k_dense_replace": "first_num_dense_layers",
    "routed_scaling_factor": "routed_scaling_factor",
}
"""MaxText's option for a key of config.json."""
ALWAYS = (
    "override_model_config=true",
    "hardware=cpu",
    "skip_jax_distributed_system=true",
    "attention=dot_product",
    "sparse_matmul=false",
    "matmul_precision=highest",
    "per_device_batch_size=1",
    f"max_target_length={len(TOKENS)}",
    "run_name=judged",
)
CONVERSIONS = ("to_maxtext", "to_huggingface")


@dataclass(frozen=True)
class Case:
    """A model that both programs know.

    Attributes:
        kind: its `model_type` on the Hub.
        model: MaxText's name of a model of this kind.
        own: keys of its config.json.
        options: options of MaxText.
        layout: the layout of zerotools that stacks layers.
        apart: the layout that does not, if zerotools writes one.
        converts: whether MaxText has a conversion of this model.
    """

    kind: str
    model: str
    own: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "maxtext"
    apart: str = ""
    converts: bool = True


def _gemma3(layers: int) -> Case:
    own = {**GEMMA, "num_hidden_layers": layers}
    options = {"rope_linear_scaling_factor": 1.0, "rope_max_timescale": 1_000_000}
    return Case("gemma3_text", "gemma3-4b", own, options, apart="maxtext-apart")


def _deepseek_v3(layout: str, *, converts: bool) -> Case:
    own = {**LATENT, "q_lora_rank": 20, "first_k_dense_replace": 2}
    options = {"q_lora_rank": 20, "mscale": 0.707}
    return Case("deepseek_v3", "deepseek3-671b", own, options, layout, converts=converts)


CASES = {
    "llama-pairs": Case(
        "llama", "llama3.1-8b", {}, {"rope_use_scale": False}, layout="maxtext-pairs"
    ),
    "llama": Case("llama", "llama2-7b", converts=False),
    "mistral": Case("mistral", "mistral-7b", converts=False),
    "qwen2": Case("qwen2", "qwen2.5-7b"),
    "qwen2-tied": Case("qwen2", "qwen2.5-1.5b", TIED),
    "qwen3": Case("qwen3", "qwen3-8b", {"head_dim": 12}),
    "qwen3-tied": Case("qwen3", "qwen3-0.6b", {"head_dim": 12, **TIED}),
    "qwen3-moe": Case(
        "qwen3_moe",
        "qwen3-30b-a3b",
        {**EXPERTS, "intermediate_size": 32, "norm_topk_prob": True},
        {"base_mlp_dim": 16},
    ),
    "mixtral": Case(
        "mixtral",
        "mixtral-8x7b",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"base_moe_mlp_dim": 24},
    ),
    "gemma": Case("gemma", "gemma-2b", TIED, converts=False),
    "gemma2": Case(
        "gemma2",
        "gemma2-2b",
        {**GEMMA, "num_hidden_layers": 4},
        {"base_num_decoder_layers": 2},
    ),
    "gemma3": _gemma3(14),
    "gemma3-blocks": _gemma3(12),
    "deepseek-v2": Case(
        "deepseek_v2",
        "deepseek2-16b",
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1},
        {"q_lora_rank": 0},
    ),
    "deepseek-v3": _deepseek_v3("maxtext", converts=True),
    "deepseek-v3-0.2.5": _deepseek_v3("maxtext-0.2.5", converts=False),
}


@dataclass(frozen=True)
class Run:
    """One case in one dtype, with layers stacked or apart. `logits` are those of transformers."""

    name: str
    case: Case
    folder: Path
    dtype: str
    stacked: bool
    logits: np.ndarray

    @property
    def layout(self) -> str:
        return self.case.layout if self.stacked else self.case.apart

    @property
    def hub(self) -> Path:
        return self.folder / "hf"

    @property
    def item(self) -> Path:
        return self.folder / "item"

    def job(self) -> dict[str, Any]:
        """Return the `maxtext_side.Job` of this run."""
        steps = [*CONVERSIONS] if self.case.converts else []
        steps += ["read_item"] if self.layout else []
        steps += ["compute_logits"] if self.dtype == "float32" else []
        steps += ["train"] if self.layout and self.dtype == "float32" else []
        return {
            "model": self.case.model,
            "arguments": self._arguments(),
            "hub": str(self._hub_of_maxtext()),
            "item": str(self.item) if self.layout else "",
            "out": str(self.folder),
            "dtype": self.dtype,
            "tokens": TOKENS,
            "steps": steps,
        }

    def _arguments(self) -> list[str]:
        config = json.loads((self.hub / "config.json").read_text())
        rope = config.get("rope_parameters") or {}
        made = {new: config[old] for old, new in ARGUMENTS.items() if old in config}
        made |= {"rope_max_timescale": rope.get("rope_theta"), **self.case.options}
        made |= {"scan_layers": self.stacked, "weight_dtype": self.dtype, "dtype": self.dtype}
        if "kv_lora_rank" in made:
            del made["head_dim"]
        return [*ALWAYS, *(f"{name}={value}" for name, value in made.items())]

    def _hub_of_maxtext(self) -> Path:
        """Return the directory of the model for MaxText. It converts Gemma 3 as a part of a model
        with images."""
        if self.case.kind != "gemma3_text":
            return self.hub
        torch_files, out = import_module("safetensors.torch"), self.folder / "hf-of-maxtext"
        out.mkdir()
        tensors = torch_files.load_file(self.hub / "model.safetensors")
        renamed = {f"model.language_{name}": value for name, value in tensors.items()}
        torch_files.save_file(renamed, out / "model.safetensors")
        text = json.loads((self.hub / "config.json").read_text())
        vision = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
        whole = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
        (out / "config.json").write_text(json.dumps(whole))
        return out


def written(case: Case, hub: Path, dtype: str) -> np.ndarray:
    """Write a random model with transformers, and return its logits."""
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(case.kind, **{**SMALL, **case.own})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(torch.rand(value.shape) - 0.5)
        model = model.to(getattr(torch, dtype))
        model.save_pretrained(hub)
        model, factor = model.float().eval(), 1.0
        if case.kind == "gemma3_text":
            # MaxText rounds the root to bfloat16, as transformers does for a model in bfloat16.
            root = SMALL["hidden_size"] ** 0.5
            model.model.embed_tokens.embed_scale = torch.tensor(root).bfloat16().float()
            factor = float(model.model.embed_tokens.embed_scale) / root
        logits = model(torch.tensor([TOKENS])).logits[0] * factor
    return np.asarray(logits.numpy())


def run_zerotools(*arguments: object) -> None:
    command = [sys.executable, "-m", "zerotools", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def exported(run: Run, source: Path, name: str) -> Arrays:
    """Return the tensors of the Hub that zerotools makes of a checkpoint of MaxText."""
    out, dtype = run.folder / name, {"float32": "fp32", "bfloat16": "bf16"}[run.dtype]
    how = ("--map-to", "hf", "--map-from", run.case.apart if not run.stacked else run.case.layout)
    if not run.layout:
        how = ("--map-to", "hf", "--map-from", run.case.layout)
    run_zerotools("consolidate", source, out, *how, "--dtype", dtype, "--config-dir", run.hub)
    return load(out / "model.safetensors")


def load(file: Path) -> Arrays:
    return dict(import_module("safetensors.numpy").load_file(file))


@dataclass
class Verdicts:
    """The rows of the table, sentences about steps that failed, and whether a tensor differs or
    MaxText did not compute logits."""

    rows: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differ: bool = False

    def compared(self, run: Run, what: str, ours: Arrays, theirs: Arrays) -> str:
        """Return how many tensors of `ours` are equal to those of `theirs`."""
        rounded = wider = 0
        different = sorted(ours.keys() ^ theirs.keys())
        for name in sorted(ours.keys() & theirs.keys()):
            one, other = ours[name], theirs[name]
            if one.dtype != other.dtype:
                wider += 1
                other = other.astype(one.dtype)
            if one.shape != other.shape:
                different.append(name)
            elif one.tobytes() != other.tobytes():
                whole = {4: "i4", 2: "i2"}[one.itemsize]
                apart = one.view(whole).astype("i8") - other.view(whole).astype("i8")
                rounded += bool(np.abs(apart).max() <= 1)
                different += [name] if np.abs(apart).max() > 1 else []
        if wider:
            self._note(run, f"{what}: {wider} have another dtype in MaxText")
        if different:
            self.differ = True
            self._note(run, f"{what}: {len(different)} differ, {', '.join(different[:4])}")
        said = f"{len(theirs) - rounded - len(different)}"
        return said + (f", {rounded} rounded" if rounded else "")

    def again(self, ours: Arrays, model: Arrays) -> str:
        """Return how many tensors are equal to those of the first model, and the largest error."""
        far = [
            np.abs(ours[name].astype("f8") - array.astype("f8")).max()
            for name, array in model.items()
            if ours[name].tobytes() != array.tobytes()
        ]
        said = f"{len(model) - len(far)}"
        return said + (f", {len(far)} within {max(far):.1g}" if far else "")

    def judge(self, run: Run) -> None:
        """Add the row of a run."""
        for error in sorted(run.folder.glob("*.error")):
            last = next(line for line in reversed(error.read_text().splitlines()) if line.strip())
            self._note(run, f"{error.stem}: {last.strip():.160}")
        theirs, hub = run.folder / "theirs.safetensors", run.folder / "hub.safetensors"
        cells = {"to MaxText": "", "from MaxText": "", "and back": "", "trained": "", "logits": ""}
        model = load(run.hub / "model.safetensors")
        made = exported(run, run.item, "of-item") if run.layout else {}
        if theirs.exists() and run.layout:
            ours = load(run.folder / "ours.safetensors")
            cells["to MaxText"] = self.compared(run, "to MaxText", ours, load(theirs))
        if theirs.exists():
            back = exported(run, run.folder / "run", "of-run")
            made = made or back
            cells["and back"] = self.again(back, model)
        elif run.layout:
            cells["and back"] = self.again(made, model)
        if hub.exists():
            found = {name.replace("language_model.", ""): v for name, v in load(hub).items()}
            cells["from MaxText"] = self.compared(run, "from MaxText", made, found)
        if (run.folder / "trained").exists() and not (run.folder / "train.error").exists():
            trained = exported(run, run.folder / "trained/judged/checkpoints", "of-trained")
            cells["trained"] = self.compared(run, "trained", trained, made)
        if (logits := run.folder / "logits.safetensors").exists():
            found_logits = load(logits)["logits"][:, : run.logits.shape[1]]
            far = np.abs(found_logits - run.logits).max()
            most = np.abs(run.logits).max()
            self.differ |= bool(far > 1e-5 * most)
            cells["logits"] = f"{far:.1g} of {most:.2g}"
        elif run.layout and run.dtype == "float32":
            self.differ = True
        form = f"{run.dtype}, {'stacked' if run.stacked else 'apart'}"
        self.rows.append(f"| {' | '.join([run.name, form, *cells.values()])} |")

    def _note(self, run: Run, text: str) -> None:
        form = f"{run.dtype}, {'stacked' if run.stacked else 'apart'}"
        self.notes.append(f"- {run.name}, {form}, {text}")


def prepared(names: list[str], root: Path) -> Iterator[Run]:
    """Write the model of each case in each form, and zerotools' item of it."""
    for name in names or CASES:
        for dtype, stacked in (("float32", True), ("float32", False), ("bfloat16", True)):
            case = CASES[name]
            if not stacked and not (case.converts or case.apart):
                continue
            folder = root / f"{name}-{dtype}-{stacked}"
            folder.mkdir(parents=True)
            run = Run(name, case, folder, dtype, stacked, written(case, folder / "hf", dtype))
            if run.layout:
                how = ("--to", "orbax", "--map-to", run.layout)
                run_zerotools("convert", run.hub, run.item, *how)
            yield run


def main(python: str, names: list[str], root: Path) -> int:
    """Judge the cases with these names, or all; return the exit status."""
    runs = list(prepared(names, root))
    (root / "jobs.json").write_text(json.dumps([run.job() for run in runs]))
    side = Path(__file__).with_name("maxtext_side.py")
    with (root / "maxtext.log").open("w") as log:
        command = [python, str(side), str(root / "jobs.json")]
        done = subprocess.run(command, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SystemExit((root / "maxtext.log").read_text()[-2000:])
    verdicts = Verdicts()
    for run in runs:
        verdicts.judge(run)
    versions = json.loads((root / "versions.json").read_text())
    print("# The layouts of MaxText, judged by MaxText\n")
    said = ", ".join(f"{name} {text}" for name, text in versions.items())
    print(
        "`scripts/judge maxtext`; `tests/golden/orbax_runs/maxtext_judge.py` explains the columns."
    )
    print(f"{date.today()}: {said}.\n")
    print("| model | form | to MaxText | from MaxText | and back | trained | logits |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join([*verdicts.rows, "", *verdicts.notes]))
    return int(verdicts.differ)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(sys.argv[1], sys.argv[2:], Path(scratch)))
