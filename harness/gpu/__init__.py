"""The checks that need a GPU, in one command: a table of checks, each in a separate process.

    python -m harness.gpu --out DIR [--budget 500] [--device cpu] [--wheels DIR] [--only NAME ...]

`rows` runs the checks, `table` writes the files, `looks` has them by name and in order. They are in
`kernels`, `training`, `predicted`, `daemon_jobs`, `engines` and `figures`; `slow_copies` and
`fake_rank` are ranks that they start. A check that fails, hangs or crashes is one row; those for
which no time is left are skipped. `--device cpu` runs what CPUs can show, so that the command works
on the day on which a GPU is there. It touches no clocks, no MIG mode, and resets nothing.
"""
