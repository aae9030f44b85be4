"""Code that tests and benchmarks share: processes that end with their starter, deadlines, ranks.

It is part of the checkout only, not of the wheel, and it imports neither `tests` nor `benchmarks`.

- `started`: processes that are ended with the test that started them; `leftovers` records them.
- `patience`: deadlines that grow with the load of the machine.
- `ports`: the ports at which ranks meet.
- `launching`: the ranks of a job, without a daemon; `rank_jobs` lets them run several jobs;
  `one_rank` starts one in the terminal, for a debugger.
- `forked`, `forkserver`: start Python programs, such as ranks, with torch already imported.
- `invariants`: the rules that a daemon's state directory keeps at every moment.
- `faults`: kills and errors at every durable system call; `soak`: random ones, for half an hour.
- `kernel`: a control group in which the kernel ends what takes too much memory; where pages lie.
- `gpu`: what only a GPU can show, in one command; with `--device cpu`, what CPUs can.
- `browser`: a real browser without a screen.
- `syscalls`: kills at the calls of a forked child, without strace.
"""
