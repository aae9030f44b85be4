"""Initial weights do not depend on the ranks, and weights on disk arrive whole."""

import json
from pathlib import Path

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job, start

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("rank_weights.py")
MODELS = {
    "llama": TINY_LLAMA,
    "tied": {**TINY_LLAMA, "tie_word_embeddings": True},
    "gpt2": TINY_GPT2,
}


def saved_model(directory: Path) -> Path:
    """A Hugging Face directory of bf16 weights, made by transformers itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**MODELS["tied"])).to(torch.bfloat16)
    model.save_pretrained(directory)
    return directory


def report(run_dir: Path, text: Path, world_size: int, **changes: object) -> dict[str, object]:
    (run_dir / "out").mkdir(parents=True)
    (run_dir / "out" / "models.json").write_text(json.dumps(MODELS))
    attempt = start(run_dir, job(text, ranks=world_size, **changes), script=SCRIPT)
    assert attempt.finish() == [0] * world_size, attempt.log()
    found: dict[str, object] = json.loads(attempt.log().splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, dict[str, object]]:
    """By number of ranks; two also load weights from a directory."""
    root = tmp_path_factory.mktemp("weights")
    directory = saved_model(root / "model")
    return {
        1: report(root / "1", text, 1),
        2: report(root / "2", text, 2, model={"path": str(directory)}),
        3: report(root / "3", text, 3),
    }


def test_initial_weights_are_the_same_at_every_world_size_and_stage(
    reports: dict[int, dict[str, object]],
) -> None:
    assert len(set(reports[1].values())) == len(MODELS)  # stages alike, models not
    for name, digest in reports[1].items():
        assert reports[2][name] == reports[3][name] == digest


def test_weights_of_a_directory_are_read_by_every_rank_in_part(
    reports: dict[int, dict[str, object]],
) -> None:
    assert reports[2]["path equal"] is True
    assert reports[2]["path buffers finite"] is True
