"""Code that tests and benchmarks share: starting and ending processes, deadlines, ranks, faults.

This package is part of the checkout only, not of the wheel. It imports neither `tests` nor
`benchmarks`.

- `started`: processes that end with the test that started them; `leftovers` records them.
- `patience`: deadlines that grow with the load of the machine.
- `ports`: free ports for the rendezvous of ranks.
- `launching`: starts the ranks of a job without a daemon. `rank_jobs` lets ranks run several jobs,
  and `one_rank` starts one rank in the terminal, for a debugger.
- `forked`, `forkserver`: start Python programs, such as ranks, with torch already imported.
- `warm_interpreter`, `warm_client`: an interpreter for the jobs of real daemons that starts ranks
  with torch already imported.
- `invariants`: checks the rules that a daemon's state directory keeps at every moment.
- `left_groups`: removes control groups that killed attempts left.
- `faults`: kills processes, or makes calls fail, at every system call that makes data durable.
- `soak`: random faults for half an hour.
- `syscalls`: kills a forked child at its n-th system call, without strace.
- `kernel`: a control group with a memory limit, and the NUMA nodes of memory pages.
- `gpu`: all checks that need a GPU, in one command; with `--device cpu`, the checks that CPUs can
  do.
- `browser`: a headless browser for the tests of the page.
- `nodes`, `slurm`: one job on several nodes, in network namespaces or on a Slurm cluster.
- `fake_gpu_probe`: GPUs for machines without GPUs.
- `stores`: object stores on loopback, and a proxy that causes faults.
- `release`: makes a release.
"""
