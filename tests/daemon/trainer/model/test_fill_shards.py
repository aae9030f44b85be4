"""Initial weights do not depend on the ranks, and weights on disk arrive whole."""

import json
from pathlib import Path

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job, start

torch = pytest.importorskip("torch")

from zerotools.core.boxes import Box  # noqa: E402
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor  # noqa: E402
from zerotools.core.dtypes import BFLOAT16, FLOAT32  # noqa: E402
from zerotools.core.errors import BadFile  # noqa: E402
from zerotoolsd.trainer.model import fill_shards  # noqa: E402
from zerotoolsd.trainer.model.fill_shards import BoxReader  # noqa: E402

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("rank_weights.py")
MODELS = {
    "llama": TINY_LLAMA,
    "tied": {**TINY_LLAMA, "tie_word_embeddings": True},
    "gpt2": TINY_GPT2,
}
WEIGHT = Key("weight", "param")
WHOLE = torch.arange(60, dtype=torch.float32).view(6, 10)


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


def checkpoint(path: Path, tensor: Tensor) -> Checkpoint:
    files = {chunk.file: (path / chunk.file).stat().st_size for chunk in tensor.chunks}
    return Checkpoint(path, {WEIGHT: tensor}, Origin("made", path), files=files)


def read(path: Path, tensor: Tensor, box: Box, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    into = torch.full(box.shape, -1, dtype=dtype)
    with BoxReader(checkpoint(path, tensor)) as reader:
        reader.fill(into, WEIGHT, tensor, box)
    return into


@pytest.fixture
def halves(tmp_path: Path) -> Tensor:
    """The left four columns in one file, behind 12 bytes; the others, transposed, in another."""
    (tmp_path / "left").write_bytes(b"x" * 12 + WHOLE[:, :4].contiguous().numpy().tobytes())
    (tmp_path / "right").write_bytes(WHOLE[:, 4:].T.contiguous().numpy().tobytes())
    return Tensor(
        FLOAT32,
        (6, 10),
        (
            Chunk(Box((0, 0), (6, 4)), "left", 12),
            Chunk(Box((0, 4), (6, 6)), "right", 0, (1, 6)),
        ),
    )


@pytest.mark.parametrize("pieces", [64 << 20, 16])
@pytest.mark.parametrize(
    "box",
    [Box((0, 0), (6, 10)), Box((2, 0), (3, 10)), Box((1, 3), (4, 3)), Box((5, 9), (1, 1))],
)
def test_a_box_is_what_lies_in_the_files(
    tmp_path: Path, halves: Tensor, box: Box, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_shards, "PIECE_BYTES", pieces)
    rows, columns = (slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
    assert torch.equal(read(tmp_path, halves, box), WHOLE[rows, columns])


def test_values_are_cast_to_the_type_of_their_place(tmp_path: Path) -> None:
    half = WHOLE.to(torch.bfloat16)
    (tmp_path / "file").write_bytes(half.view(torch.uint8).numpy().tobytes())
    tensor = Tensor(BFLOAT16, (6, 10), (Chunk(Box.whole((6, 10)), "file", 0),))
    assert torch.equal(read(tmp_path, tensor, Box((2, 0), (2, 10))), half[2:4].float())


def test_a_number_is_a_box_of_no_dimension(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(WHOLE[1, 2].numpy().tobytes())
    tensor = Tensor(FLOAT32, (), (Chunk(Box((), ()), "file", 0),))
    assert float(read(tmp_path, tensor, Box((), ()))) == 12


def test_what_is_missing_is_refused(tmp_path: Path, halves: Tensor) -> None:
    (tmp_path / "left").write_bytes(b"x" * 40)
    with pytest.raises(BadFile, match="ends at byte 108, but the file has 40 bytes"):
        read(tmp_path, halves, Box((0, 0), (6, 10)))
    whole = checkpoint(tmp_path, Tensor(FLOAT32, (6, 10), halves.chunks[1:]))
    with pytest.raises(BadFile, match="weight is incomplete"), BoxReader(whole) as reader:
        reader.fill(torch.empty(6, 10), WEIGHT, whole.tensors[WEIGHT], Box.whole((6, 10)))
