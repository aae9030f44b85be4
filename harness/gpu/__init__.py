"""The checks that need a GPU, in one command. Each check runs in its own process.

    python -m harness.gpu --out DIR [--budget 500] [--device cpu] [--wheels DIR] [--only NAME ...]

- `rows`: runs the checks within a budget of seconds.
- `table`: the table of results, and the files in which it is written.
- `looks`: all checks by name, in the order in which they run. The checks are defined in this
  module, `attention_memory`, `kernels`, `training`, `predicted`, `machine`, `daemon_jobs`,
  `engines` and `figures`.
- `checks`: the type of a check, and code that the checks share.
- `fake_rank`, `slow_copies`, `watched_rank`: ranks that checks start.

Each check is a row of the table, also if it fails, hangs or crashes. When the budget is used up,
the remaining checks are skipped. `--device cpu` runs the checks that a CPU can do, to test this
command before a GPU is available. No check changes the clocks or the MIG mode of a GPU, or resets a
GPU.
"""
