"""DeepSpeed's own converter on several cases.

    python -m tests.golden.deepspeed_runs.converting CASE ...

A case is a directory with `checkpoint/`; its result is `theirs/`. Prints a JSON object: what the
converter raised, or null. `CASE!` converts without `--inject_missing_state`.
"""

import contextlib
import io
import json
import sys
from argparse import Namespace
from pathlib import Path

from deepspeed.checkpoint import ds_to_universal


def convert(source: Path, out: Path, *, inject: bool) -> str | None:
    """What it raised; None where it went through."""
    tag = (source / "latest").read_text()
    arguments = Namespace(
        input_folder=str(source / tag),
        output_folder=str(out / f"{tag}_universal"),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=inject,
    )
    out.mkdir()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ds_to_universal.main(arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    found = {}
    for case in sys.argv[2:]:
        path = Path(case.removesuffix("!"))
        out = Path(path.name) / "theirs"
        out.parent.mkdir(exist_ok=True)
        found[path.name] = convert(path / "checkpoint", out, inject=not case.endswith("!"))
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
