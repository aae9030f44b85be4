"""DPO on real ranks: TRL's losses, at every number of ranks, and references that are kept."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.data.test_example_store import pairs_in
from tests.daemon.trainer.finetuning import write_lines
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.torch_releases import HAS_TENSOR_RANKS, needs_tensor_ranks
from tests.matrices import FULL
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.rank.rank_settings import Rank

pytestmark = [pytest.mark.torch, pytest.mark.dear(25, "three numbers of ranks")]
GOLDEN = Path(__file__).parents[2] / "golden" / "trl-1.16.0" / "dpo"
TRUTH = json.loads((GOLDEN / "truth.json").read_text())
CLOSE = 2e-5
"""Of losses and rewards: TRL sums in another order, and in later steps that adds up."""
STAGES_ON: dict[int, tuple[int, ...]] = {1: (0,), 2: (3,)}
if FULL:
    STAGES_ON = {1: (0,), 2: (1, 2), 3: (3,)}
TOGETHER: dict[int, dict[str, dict[str, int]]] = {
    2: {"sequences": {"sequence_ranks": 2}, "layers": {"tensor_ranks": 2}}
}
"""Ranks that compute the same pairs, by their number and by what each has of these."""
if FULL:
    TOGETHER |= {
        3: {"sequences": {"sequence_ranks": 3}, "layers": {"tensor_ranks": 3}},
        4: {"both": {"sequence_ranks": 2, "tensor_ranks": 2}},
    }
HEADS = {
    **TINY_LLAMA,
    "vocab_size": 259,
    "hidden_size": 48,
    "intermediate_size": 36,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}
NAMES = {
    "chosen": "rewards/chosen",
    "rejected": "rewards/rejected",
    "right": "rewards/accuracies",
}


def dpo_job(stage: int, **changes: Any) -> dict[str, Any]:
    train = {
        "steps": TRUTH["steps"],
        "batch_size": TRUTH["batch_size"],
        "learning_rate": TRUTH["learning_rate"],
        "weight_decay": 0.1,
        **changes.pop("train", {}),
    }
    return {
        "seed": TRUTH["seed"],
        "model": {"path": str(GOLDEN / "model")},
        "data": {"text": [], "preferences": [str(GOLDEN / "preferences.jsonl")]},
        "dpo": {"beta": TRUTH["beta"]},
        "train": train,
        "zero": {"stage": stage},
        **changes,
    }


def of_heads(**changes: Any) -> dict[str, Any]:
    """Of a model whose heads several ranks may share. At a higher rate, also ranks that share
    nothing come to losses that differ by 7e-5 at the fifth step."""
    slow = {"learning_rate": 1e-3, **changes.pop("train", {})}
    found = dpo_job(0, eval={"fraction": 0.2}, train=slow, **changes)
    found["data"]["tokenizer"] = str(GOLDEN / "model")
    return {**found, "model": {"config": HEADS}}


def tuned(**changes: Any) -> dict[str, Any]:
    """The job before: it learns what was chosen."""
    rows = {"examples": [str(GOLDEN / "preferences.jsonl")], "response_column": "chosen"}
    return {**dpo_job(0, **changes), "data": {"text": [], **rows}, "dpo": {}}


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """On 1 rank, and on more that also go on from what there was before."""
    root = tmp_path_factory.mktemp("references")
    found: dict[int, Runs] = {}
    further: dict[str, dict[str, Any]] = {}
    for ranks, stages in STAGES_ON.items():
        directory = root / str(ranks)
        jobs = {f"stage-{stage}": dpo_job(stage, checkpoint={"every": 3}) for stage in stages}
        out = directory / "out" / f"stage-{stages[0]}" / "out"
        source = out / find_job_checkpoints.directory_name(3)
        jobs["elsewhere"] = dpo_job(stages[-1], resume_from=str(source))
        jobs |= together(ranks)
        if ranks == 1:
            jobs["whole"] = of_heads()
            jobs["dropout"] = of_heads(train={"steps": 1})
            jobs["dropout"]["model"] = {"config": {**HEADS, "attention_dropout": 0.5}}
            jobs["pieces"] = dpo_job(0, train={"micro_batch_size": 2}, eval={"fraction": 0.2})
            jobs["tuned"] = tuned(train={"steps": 3}, checkpoint={"every": 3})
        found[ranks] = run_all(directory, text, ranks, jobs | further, ends=False)
        step = found[ranks].checkpoint(f"stage-{stages[0]}", 3)
        further = {"moved": dpo_job(3, resume_from=str(step))}
        if ranks == 1:
            step = found[1].checkpoint("tuned", 3)
            further["after-tuning"] = dpo_job(1, resume_from=str(step))
    for ranks in TOGETHER.keys() - STAGES_ON.keys():
        found[ranks] = run_all(root / str(ranks), text, ranks, together(ranks), ends=False)
    return found


def together(ranks: int) -> dict[str, dict[str, Any]]:
    """The jobs whose ranks compute the same pairs."""
    ways = TOGETHER.get(ranks, {})
    pieces = {"micro_batch_size": 3}
    return {
        name: of_heads(train=pieces, zero={"stage": 3, **way})
        for name, way in ways.items()
        if HAS_TENSOR_RANKS or "tensor_ranks" not in way
    }


@pytest.mark.parametrize("ranks", STAGES_ON)
def test_losses_and_rewards_are_those_of_trl(by_ranks: dict[int, Runs], ranks: int) -> None:
    runs, logged = by_ranks[ranks], TRUTH["logged"]
    for stage in STAGES_ON[ranks]:
        losses = [each["loss"] for each in logged]
        assert runs.losses(f"stage-{stage}") == pytest.approx(losses, rel=CLOSE, abs=CLOSE)
        norms = [each["grad_norm"] for each in logged]
        assert runs.of(f"stage-{stage}", "grad_norm") == pytest.approx(norms, rel=1e-4)
        rewards = runs.of(f"stage-{stage}", "rewards")
        for name, theirs in NAMES.items():
            wanted = pytest.approx([each[theirs] for each in logged], rel=1e-4, abs=1e-4)
            assert [each[name] for each in rewards] == wanted, name


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        pytest.param(ranks, name, marks=[needs_tensor_ranks] if "tensor_ranks" in way else [])
        for ranks, ways in TOGETHER.items()
        for name, way in ways.items()
    ],
)
def test_ranks_that_compute_the_same_pairs_count_each_once(
    by_ranks: dict[int, Runs], ranks: int, name: str
) -> None:
    found, wanted = by_ranks[ranks].report[name], by_ranks[1].report["whole"]
    for one, other in zip(found["outcomes"], wanted["outcomes"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=CLOSE, abs=CLOSE)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert one["rewards"] == pytest.approx(other["rewards"], rel=1e-4, abs=1e-4)
    [own], [alone] = found["evaluations"].values(), wanted["evaluations"].values()
    assert (own["sequences"], own["tokens"]) == (alone["sequences"], alone["tokens"]) == (4, 4)
    assert own["loss"] == pytest.approx(alone["loss"], rel=CLOSE, abs=CLOSE)
    assert own["rewards"] == pytest.approx(alone["rewards"], rel=1e-4, abs=1e-4)


def test_no_dropout_makes_the_model_differ_from_its_reference(by_ranks: dict[int, Runs]) -> None:
    assert by_ranks[1].losses("dropout") == pytest.approx([math.log(2)], rel=1e-6)


def reference_of(runs: Runs, name: str) -> Path:
    [found] = (runs.directory / name / "out" / "reference").glob("*.f32")
    return found


def test_references_are_those_of_the_start_weights(by_ranks: dict[int, Runs]) -> None:
    import numpy as np
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(GOLDEN / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
    wanted = []
    for line in (GOLDEN / "preferences.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name in ("chosen", "rejected"):
            asked, said = tokenizer(row["prompt"])["input_ids"], tokenizer(row[name])["input_ids"]
            ids = torch.tensor([[*asked, *said, tokenizer.eos_token_id]])
            with torch.no_grad():
                each = model(ids).logits.log_softmax(-1)[0, len(asked) - 1 : -1]
            wanted.append(float(each.gather(1, ids[0, len(asked) :, None]).sum()))
    names = set()
    for ranks, stages in STAGES_ON.items():
        path = reference_of(by_ranks[ranks], f"stage-{stages[0]}")
        assert np.fromfile(path, "<f4") == pytest.approx(wanted, rel=1e-5)
        names.add(path.name)
    assert len(names) == 1


def test_pieces_are_added_up_and_held_out_pairs_evaluated(by_ranks: dict[int, Runs]) -> None:
    assert len(by_ranks[1].losses("pieces")) == TRUTH["steps"]
    [evaluated] = by_ranks[1].report["pieces"]["evaluations"].values()
    assert (evaluated["sequences"], evaluated["tokens"]) == (4, 4)
    assert evaluated["rewards"]["chosen"] > evaluated["rewards"]["rejected"] + 0.3
    assert evaluated["rewards"]["right"] > 0.7
    assert 0 < evaluated["loss"] < 0.6


class Lone:
    """A rank that has no others."""

    rank = Rank(0, 0, 1)
    heartbeat = SimpleNamespace(beat=lambda: None)

    def decided_by_rank_zero(self, decide: Any) -> Any:
        return decide()

    def gathered(self, value: Any) -> list[Any]:
        return [value]


class Scorer:
    """Says of an answer how long it is, until `most` pairs were asked for."""

    def __init__(self, most: int = 99) -> None:
        self.most, self.asked = most, 0

    def log_probabilities(self, examples: Any) -> list[float]:
        self.asked += len(examples) // 2
        return [-float(len(each.inputs)) for each in examples]

    def is_over(self) -> bool:
        return self.asked >= self.most


def reference_run(out: Path, scorer: Any, **train: Any) -> Any:
    from zerotoolsd.trainer.dpo_reference import ReferenceRun

    spec = JobSpec(
        output_dir=str(out),
        model=ModelSpec(path=str(GOLDEN / "model")),
        train=TrainSpec(batch_size=2, **train),
    )
    said = SimpleNamespace(log_line=lambda text: None, alive=lambda: None)
    return ReferenceRun(spec, "{}", scorer, Lone(), said, scorer.is_over)  # type: ignore[arg-type]


def data_of(path: Path, count: int) -> Any:
    answers = [([5] * (1 + n % 7), [6] * (1 + n % 3)) for n in range(2 * count)]
    return SimpleNamespace(pairs=(pairs_in(path, answers),))


def test_what_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    data, out = data_of(tmp_path / "ids", 7), tmp_path / "out"
    first = Scorer(most=4)
    reference_run(out, first).find(data, None)
    [draft] = (out / "reference").glob("*.draft")
    assert (first.asked, draft.stat().st_size) == (4, 4 * 8)
    with draft.open("ab") as file:
        file.write(b"half")
    second = Scorer()
    reference_run(out, second).find(data, None)
    assert second.asked == 3
    assert [path.suffix for path in sorted((out / "reference").glob("*-*"))] == [".f32"]
    third = Scorer()
    reference_run(out, third).find(data, None)
    assert third.asked == 0
    [pairs] = data.pairs
    for number in range(7):
        pair = pairs.example(number)
        assert pair.reference == (-len(pair.inputs), -len(pair.rejected.inputs))


def test_other_weights_or_data_have_references_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number, (count, train) in enumerate([(3, {}), (4, {}), (3, {"precision": "fp32"})], 1):
        scorer = Scorer()
        reference_run(out, scorer, **train).find(data_of(tmp_path / str(number), count), None)
        assert scorer.asked == count
        assert len(list((out / "reference").glob("*.f32"))) == number


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_was_begun_is_not_given_other_references(tmp_path: Path, is_there: bool) -> None:
    out, start = tmp_path / "out", SimpleNamespace(path=tmp_path / "out" / "step-00000003")
    if is_there:
        reference_run(out, Scorer()).find(data_of(tmp_path / "before", 3), None)
    with pytest.raises(BadRequest, match=r"reference: has no reference log-probabilities for this"):
        reference_run(out, Scorer()).find(data_of(tmp_path / "now", 4), start)


def test_a_checkpoint_brings_them_where_the_directory_is_lost(
    by_ranks: dict[int, Runs], tmp_path: Path
) -> None:
    saved = by_ranks[1].checkpoint("stage-0", 3)
    find_job_checkpoints.verify_checkpoint_files(saved)
    out = tmp_path / "out"
    copied = shutil.copytree(saved, out / saved.name)
    lines = (GOLDEN / "preferences.jsonl").read_text().splitlines()
    data = SimpleNamespace(pairs=(Known(len(lines), saved),))
    files = reference_run(out, Scorer(most=0)).find(data, SimpleNamespace(path=copied))
    assert [path.name for path in files] == ["weights", reference_of(by_ranks[1], "stage-0").name]
    assert all(path.parent == out / "reference" for path in files)


class Known:
    """Pairs whose tokens are those of a checkpoint's data."""

    def __init__(self, count: int, checkpoint: Path) -> None:
        self.count = count
        [self.file] = (checkpoint / "reference").glob("*.f32")

    def __len__(self) -> int:
        return self.count

    def digest(self) -> str:
        return self.file.name.split("-")[0]

    def set_references(self, references: Any) -> None:
        assert references.tobytes() == self.file.read_bytes()


def test_damaged_references_are_refused(tmp_path: Path) -> None:
    out, data = tmp_path / "out", data_of(tmp_path / "ids", 3)
    reference_run(out, Scorer()).find(data, None)
    [path] = (out / "reference").glob("*.f32")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadFile, match="must have 6 finite numbers for 3 pairs, but has 5"):
        reference_run(out, Scorer()).find(data, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"vocab_size": 100}},
            "the data needs 259 token ids, but the model's vocab_size is 100: raise vocab_size",
        ),
        ({"rows": [{"prompt": "p", "chosen": "c"}]}, 'line 1: has no column "rejected"'),
        (
            {"train": {"chunked_loss": "on"}},
            'train.chunked_loss = "on": DPO needs the log-probability',
        ),
    ],
)
def test_it_is_refused_before_it_is_queued(
    tmp_path: Path, text: Path, changes: dict[str, Any], said: str
) -> None:
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    config = {
        **json.loads((GOLDEN / "model" / "config.json").read_text()),
        **changes.get("model", {}),
    }
    tree = dpo_job(0, train=changes.get("train", {}))
    tree["model"] = {"config": config}
    tree["data"]["tokenizer"] = str(GOLDEN / "model")
    if "rows" in changes:
        path = write_lines(tmp_path / "pairs.jsonl", changes["rows"])
        tree["data"]["preferences"] = [str(path)]
    with pytest.raises(ZerotoolsError) as error:
        check_job(job_from_dict(job(text, **tree), source="job.toml"))
    assert said in str(error.value)


@pytest.mark.parametrize("ranks", STAGES_ON)
def test_a_run_that_goes_on_takes_the_references_along(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    runs, stages = by_ranks[ranks], STAGES_ON[ranks]
    begun, on = f"stage-{stages[0]}", runs.losses("elsewhere")
    assert on == pytest.approx(runs.losses(begun)[3:], rel=CLOSE, abs=CLOSE)
    if len(stages) == 1:
        assert runs.ended("elsewhere") == runs.ended(begun)
    kept = [reference_of(runs, name).read_bytes() for name in (begun, "elsewhere")]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("ranks", [2, 3] if FULL else [2])
def test_it_goes_on_at_another_number_of_ranks(by_ranks: dict[int, Runs], ranks: int) -> None:
    wanted = [each["loss"] for each in TRUTH["logged"]][3:]
    assert by_ranks[ranks].losses("moved") == pytest.approx(wanted, rel=CLOSE, abs=CLOSE)


def test_the_reference_of_a_job_after_another_is_what_that_one_learned(
    by_ranks: dict[int, Runs],
) -> None:
    assert by_ranks[2].losses("after-tuning")[0] == pytest.approx(0.693147, rel=1e-5)
    before = reference_of(by_ranks[1], "stage-0")
    after = reference_of(by_ranks[2], "after-tuning")
    assert before.name.split("-")[0] == after.name.split("-")[0]
    assert before.name != after.name
