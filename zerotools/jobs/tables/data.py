"""`[data]` and `[eval]`: what a job is trained on, and what it is measured by on the way."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

TOKEN_TYPES = ("uint16", "uint32", "int32", "int64")
CHAT_TEMPLATE = ("auto", "on", "off")
PREDICTIONS = "predictions"
"""The directory in a job's `output_dir` with what it generated, a file for each evaluation."""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """`[data]`: what it is trained on. One of `text`, `tokens` and `examples`."""

    text: tuple[str, ...] = key(
        "UTF-8 text files: paths or glob patterns (`**` too), in sorted order.", default=()
    )
    tokens: tuple[str, ...] = key(
        "Files of token ids: `.npy` (one dimension), or any other name for bare little-endian "
        "numbers of `token_type`. Paths or patterns.",
        default=(),
    )
    token_type: str | None = key(
        "The type of the ids in `tokens`; `.npy` files say it themselves.",
        default=None,
        allowed=TOKEN_TYPES,
    )
    examples: tuple[str, ...] = key(
        "Files of examples to fine-tune on: one JSON object per line (also where the file is "
        "called `.json`), or one JSON array of objects. Paths or patterns.",
        default=(),
    )
    prompt_column: str = key("The key of an example that has the prompt.", default="prompt")
    response_column: str = key(
        "The key of an example that has the response. Its tokens alone make the loss.",
        default="response",
    )
    history_column: str | None = key(
        "The key of an example that has the turns before: a list of [prompt, response] pairs.",
        default=None,
    )
    max_source_length: int = key(
        "Tokens of prompt and history that are kept of an example: the first ones, or the last "
        "ones where a chat template is used.",
        default=1024,
        least=1,
    )
    max_target_length: int = key(
        "Tokens of the response that are kept, the end-of-text token included.",
        default=128,
        least=1,
    )
    chat_template: str = key(
        'Whether the tokenizer\'s chat template renders examples; `"auto"`: where it has one.',
        default="auto",
        allowed=CHAT_TEMPLATE,
    )
    packing: bool = key(
        "Fill sequences of `sequence_length` with several examples each, which do not see one "
        "another. Causal models only.",
        default=False,
    )
    tokenizer: str | None = key(
        '`"bytes"` (one token per byte, ids 0 to 255) or the path of a Hugging Face tokenizer. '
        'Default: `"bytes"` for `text`, and that of `model.path` for `examples`.',
        default=None,
    )
    sequence_length: int = key(
        "Tokens in one sequence of `text`, `tokens` or packed `examples`.", default=256, least=2
    )


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """`[eval]`: loss and perplexity on data that is not trained on, and how close what the model
    generates comes to the responses. Without `files` and `fraction` there is none."""

    files: tuple[str, ...] = key(
        "Files of the kind that `[data]` names, read alike. Paths or patterns.", default=()
    )
    fraction: float = key(
        "Instead of `files`: this part of the training data is held out, chosen by `seed`.",
        default=0.0,
        least=0,
    )
    every: int | None = key(
        "Steps between evaluations; default: only after the last step.", default=None, least=1
    )
    batch_size: int | None = key(
        "Sequences in one forward pass of one rank; default: `train.micro_batch_size`, else 1.",
        default=None,
        least=1,
    )
    max_sequences: int | None = key(
        "Evaluate on the first so many sequences; default: on all.", default=None, least=1
    )
    predict_with_generate: bool = key(
        "Generate from the prompts too, and compare with the responses: ROUGE-1, ROUGE-2, ROUGE-L "
        "and BLEU, and a file of predictions. `data.examples` only; needs rouge_score and "
        "sacrebleu in the ranks' interpreter.",
        default=False,
    )
    max_predictions: int | None = key(
        "Generate from the prompts of the first so many sequences; default: of all.",
        default=None,
        least=1,
    )
    max_new_tokens: int | None = key(
        "Tokens that are generated at most; default: `data.max_target_length`.",
        default=None,
        least=1,
    )
    num_beams: int = key(
        "Beams of the search for the likeliest text; 1: always the likeliest token.",
        default=1,
        least=1,
    )
