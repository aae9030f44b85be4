from pathlib import Path, PosixPath

import pytest

from zerotools.io.huggingface.model_sidecars import (
    CONFIG,
    find_config,
    find_model_sidecars,
    model_sidecars,
    sidecar_kind,
)


@pytest.mark.parametrize(
    ("checkpoint", "config"),
    [
        ("m", "m"),
        ("m/model.pt", "m"),
        ("run/checkpoint-5", "run"),
        ("run/checkpoint-5/model.safetensors", "run"),
        ("run/checkpoint-5/global_step5/mp_rank_00_model_states.pt", "run/checkpoint-5"),
        ("run/global_step_5/actor", "run/global_step_5/actor/huggingface"),
        ("run/checkpoints_actor/global_step5", "run/checkpoints_actor/global_step5_hf"),
    ],
)
def test_a_config_beside_a_file_in_its_directory_or_above_it(
    tmp_path: Path, checkpoint: str, config: str
) -> None:
    made = tmp_path / checkpoint
    (made.parent if made.suffix else made).mkdir(parents=True)
    if made.suffix:
        made.touch()
    place = tmp_path / config
    place.mkdir(exist_ok=True)
    (place / CONFIG).touch()
    assert find_config(made) == place / CONFIG
    assert find_model_sidecars(made) == {CONFIG: place / CONFIG}


def test_the_nearest_config_is_the_checkpoints_own(tmp_path: Path) -> None:
    near, far = tmp_path / "run/checkpoint-5", tmp_path / "run"
    near.mkdir(parents=True)
    (far / CONFIG).touch()
    (near / CONFIG).touch()
    assert find_config(near) == near / CONFIG


def test_a_directory_that_is_no_part_of_a_run_has_no_config_above_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / CONFIG).touch()
    assert find_config(tmp_path / "other") is None


class Locked(PosixPath):
    """A path of a system that lets nobody look into the directory `locked`."""

    def is_file(self) -> bool:
        if self.parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(self))
        return super().is_file()


def test_a_directory_above_that_may_not_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "locked/checkpoint-5").mkdir(parents=True)
    assert find_config(Locked(tmp_path / "locked/checkpoint-5")) is None
    with pytest.raises(PermissionError):
        find_config(Locked(tmp_path / "locked"))


TOKENIZERS = (
    "tokenizer.json", "tokenizer.model.v3", "vocab.txt", "vocab-src.json", "merges.txt",
    "qwen.tiktoken", "spm.model", "source.spm", "target.spm", "bpe.codes", "normalizer.json",
    "ice_text.model", "tekken.json", "sentencepiece.bpe.model",
)  # fmt: skip


def test_files_of_tokenizers_of_every_family(tmp_path: Path) -> None:
    for name in (*TOKENIZERS, "optimizer.pt", "notes.txt"):
        (tmp_path / name).touch()
    assert set(model_sidecars(tmp_path)) == set(TOKENIZERS)
    assert {sidecar_kind(name) for name in TOKENIZERS} == {"tokenizer"}


def test_more_chat_templates_and_modules_of_sentences(tmp_path: Path) -> None:
    names = ("additional_chat_templates/tool_use.jinja", "1_Pooling/config.json", "modules.json")
    for name in (*names, "additional_chat_templates/notes", "2_Logs/config.json/deep"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = model_sidecars(tmp_path)
    assert found == {name: tmp_path / name for name in names}
    assert [sidecar_kind(name) for name in names] == ["tokenizer", "config", "config"]
    (tmp_path / "modules.json").unlink()
    assert set(model_sidecars(tmp_path)) == {"additional_chat_templates/tool_use.jinja"}


def test_directories_and_templates_that_are_links_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "a.jinja").touch()
    linked, inside = tmp_path / "linked", tmp_path / "inside" / "additional_chat_templates"
    linked.mkdir()
    (linked / "additional_chat_templates").symlink_to(tmp_path / "home")
    inside.mkdir(parents=True)
    (inside / "a.jinja").symlink_to(tmp_path / "home" / "a.jinja")
    assert model_sidecars(linked) == {} == model_sidecars(inside.parent)
