"""Reports the errors that a rank would find in its model and data, before the job is queued.

`python -P preflight_model_and_data.py SPEC SHOW` runs under the job's interpreter. It builds the
model of the job file SPEC on the meta device, without memory for weights. It compares the model
with the tokenizer and with the tensors in the model's directory. If the job continues from a
checkpoint of another program, the model is also compared with this checkpoint. The first examples
are read as a rank would read them. The program prints one JSON object: `{"problem": sentence or
null, "notes": [sentences], "sample": null or the first SHOW examples}`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.jobs.jobfile_tables.spec import JobSpec
    from zerotoolsd.trainer.data.preview_examples import DataSample

BYTE_VALUES = 256


def check_job(spec: JobSpec, show: int = 0) -> DataSample:
    """Check the model and the data of the job `spec`.

    Return notes, and a preview of `show` examples.

    Raises:
        ZerotoolsError: the model cannot be built for the job, or cannot be trained on its data.
    """
    from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
    from zerotools.jobs.jobfile_tables.data import fixed_length, stated_length
    from zerotools.ops.resume_from_other_program.foreign_run import is_foreign, was_made_elsewhere
    from zerotools.ops.resume_from_other_program.rename_to_job import unused_order
    from zerotoolsd.trainer.check_attention_leaks import check_leaks
    from zerotoolsd.trainer.check_sequence_parallel import check_sequence_ranks
    from zerotoolsd.trainer.check_tensor_parallel import check_tensor_ranks
    from zerotoolsd.trainer.data.collate import check_decoder_start
    from zerotoolsd.trainer.data.preview_examples import sample_data
    from zerotoolsd.trainer.data.training_data import model_input_of, positions_of
    from zerotoolsd.trainer.engine.chunked_loss import check_chunked_loss
    from zerotoolsd.trainer.engine.conditional_layers import check_same_layers_on_ranks
    from zerotoolsd.trainer.engine.load_adapter import read_adapter
    from zerotoolsd.trainer.engine.router_balance import (
        balance_note,
        check_router_bias,
        check_router_loss,
    )
    from zerotoolsd.trainer.engine.start_from_other_program import make_foreign_start
    from zerotoolsd.trainer.model.add_lora_adapters import check_frozen_type
    from zerotoolsd.trainer.model.attention_choice import check_attention
    from zerotoolsd.trainer.model.keep_fp32 import cast_note, gathered_separately, kept_in_fp32
    from zerotoolsd.trainer.model.match_pretrained import match_directory
    from zerotoolsd.trainer.model.meta_model import check_data_fits, make_meta_model, read_config
    from zerotoolsd.trainer.model.optimizer_groups import check_matrices
    from zerotoolsd.trainer.model.predict_state_memory import predict_state_memory
    from zerotoolsd.trainer.reporting.mfu import flops_per_token
    from zerotoolsd.trainer.start_or_resume import check_base

    config = read_config(spec.model)
    vocabulary = _vocabulary(spec)
    length = fixed_length(spec.data, positions_of(config))
    if vocabulary is not None:
        check_data_fits(config, vocabulary, length or stated_length(spec.data))
    meta_model = make_meta_model(config, spec.lora)
    if spec.lora.path is not None and spec.resume_from is None:
        read_adapter(spec.lora, meta_model.model)
    if spec.engine == "torch":
        check_frozen_type(memory_layout_of(spec))
    check_matrices(spec.train, meta_model.model)
    check_attention(spec, meta_model.model)
    of_tensor_ranks = check_tensor_ranks(meta_model, spec.zero.tensor_ranks)
    check_same_layers_on_ranks(meta_model.model, spec.all_ranks, spec.engine)
    check_decoder_start(meta_model.model)
    check_leaks(config, packing=spec.data.packing)
    check_sequence_ranks(spec, config)
    check_router_loss(spec, meta_model.model)
    kept = kept_in_fp32(meta_model.model, spec.train)
    if spec.engine == "torch":
        gathered_separately(meta_model.model, kept)
    router_notes = [balance_note(config), check_router_bias(spec, meta_model.model)]
    notes = [*_unknown_keys(spec, config), *filter(None, router_notes), *of_tensor_ranks]
    notes += check_chunked_loss(spec, config)
    if spec.engine == "deepspeed":
        notes += cast_note(meta_model.model, kept)
    if spec.model.path is not None and (spec.resume_from is None or spec.lora.packs_frozen):
        pretrained = match_directory(meta_model.plain, meta_model.aliases, Path(spec.model.path))
        if spec.lora.packs_frozen:
            check_base(spec, meta_model, pretrained)
        notes += pretrained.notes()
    begun = None if spec.resume_from is None else Path(spec.resume_from)
    if begun is not None and (is_foreign(begun) or was_made_elsewhere(begun)):
        notes += make_foreign_start(begun, spec, meta_model).notes
    elif spec.resume_order is not None:
        notes.append(
            unused_order(spec.resume_order, f"{begun} is from a job and has the parameter names")
        )
    fits = partial(check_data_fits, config, sequence_length=None)
    sample = sample_data(spec, model_input_of(config), fits, show)
    view = sample.view
    if view is not None:
        on_gpu = spec.device == "cuda"
        memory = predict_state_memory(
            meta_model, memory_layout_of(spec), None, on_gpu=on_gpu, kept=kept
        )
        trained = flops_per_token(config, meta_model.parameter_count(), length or 0)
        view = {**view, "memory": str(memory), "epoch": _with_operations(view["epoch"], trained)}
    return replace(sample, notes=notes + sample.notes, view=view)


def _with_operations(epoch: Any, per_token: float | None) -> Any:
    if epoch is None or per_token is None:
        return epoch
    return {**epoch, "operations": epoch["tokens"] * per_token}


def _vocabulary(spec: JobSpec) -> int | None:
    """Return the number of token ids for which the model must have embeddings.

    Returns None if the data is files of token ids, which this function does not read. Tokens that
    were added to the tokenizer's vocabulary do not count, because the data may never use
    them. For example, Gemma 3 has no embedding for its image token.
    """
    from zerotools.jobs.jobfile_tables.data import BYTES, kind_of, tokenizer_of
    from zerotoolsd.trainer.data.tokenize_text import load_tokenizer

    named = tokenizer_of(spec.data, spec.model.path)
    if named is None:
        return None
    if named == BYTES:
        return BYTE_VALUES
    tokenizer = load_tokenizer(Path(named))
    end = tokenizer.eos_token_id if kind_of(spec.data) == "text" else None
    return max(int(tokenizer.vocab_size), 0 if end is None else int(end) + 1)


def _unknown_keys(spec: JobSpec, config: Any) -> Iterator[str]:
    """Yield a note for each key of `model.config` that the model's config class does not know."""
    if not isinstance(spec.model.config, dict):
        return
    known = vars(type(config)())
    for key in spec.model.config:
        if key not in known and not hasattr(type(config), key):
            yield f"model.config.{key}: a {config.model_type} config has no such key; remove it"


def main(path: Path, show: int) -> None:
    """Check the job in the file `path`, and print the report as JSON."""
    entry = importlib.util.spec_from_file_location("entry", Path(__file__).with_name("entry.py"))
    assert entry is not None
    assert entry.loader is not None
    module = importlib.util.module_from_spec(entry)
    entry.loader.exec_module(module)
    module.make_importable()
    from zerotools.core.errors import ZerotoolsError
    from zerotools.jobs.jobfile.stored_job import read_stored
    from zerotools.jobs.jobfile_tables.elastic_world_sizes import largest_spec
    from zerotoolsd.trainer.rank.rank_errors import one_line

    # The rules were checked already, for a job that resumes one of an older version.
    spec, unread = read_stored(json.loads(path.read_text("utf-8")))
    answer: dict[str, Any] = {"problem": "; ".join(unread) or None, "notes": [], "sample": None}
    try:
        if spec is not None and not unread:
            found = check_job(largest_spec(spec), show)  # report problems of several ranks, too
            answer |= {"notes": found.notes, "sample": found.view}
    except ZerotoolsError as error:
        answer["problem"] = one_line(error)
    # Not as \uXXXX: the daemon takes 64 KiB, and a text may be Chinese.
    line = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
    sys.stdout.flush()
    sys.stdout.buffer.write(line + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
