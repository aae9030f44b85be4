"""What only a GPU can show, in one command: a table of checks, each in a process of its own.

    python -m harness.gpu --out DIR [--budget 500] [--device cpu]

`looks` has the checks, `rows` runs them and writes the table. A check that fails, hangs or crashes
is one row; those for which no time is left are skipped. `--device cpu` runs what CPUs can show, so
that the command works on the day on which a GPU is there. It touches no clocks, no MIG mode, and
resets nothing.
"""
