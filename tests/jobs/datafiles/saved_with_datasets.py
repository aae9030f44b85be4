"""What made `tests/golden/datasets-VERSION`, with Hugging Face's `datasets` installed:

python -m tests.jobs.datafiles.saved_with_datasets OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(out: Path) -> None:
    import datasets

    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": f"question {number}"},
                {"role": "assistant", "content": f"answer {number}"},
            ],
            "number": number,
        }
        for number in range(5)
    ]
    whole = datasets.Dataset.from_list(rows + rows[:2])
    # Chosen out of order: what is saved are the rows as they are chosen.
    train, test = whole.select([4, 1, 2, 0, 3]), whole.select(range(5, 7))
    splits = datasets.DatasetDict(train=train, test=test)
    splits.save_to_disk(str(out), num_shards={"train": 2, "test": 1})
    (out / "truth.json").write_text(json.dumps(train.to_list(), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
