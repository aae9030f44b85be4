"""What tests and benchmarks share: processes that end with their starter, deadlines, ranks.

It is for the checkout alone: the wheel does not have it, and it imports neither `tests` nor
`benchmarks`.

- `started`: processes that are ended with the test that started them; `leftovers` notes them.
- `patience`: deadlines that grow with the load of the machine.
- `ports`: where ranks meet.
- `launching`: the ranks of a job, without a daemon; `rank_jobs` lets them run several jobs;
  `one_rank` starts one in the terminal, for a debugger.
- `forked`, `forkserver`: Python programs, such as ranks, that find torch imported.
- `invariants`: what must hold of a daemon's state directory at every moment.
- `faults`: kills and errors at every durable system call; `soak`: random ones, for half an hour.
- `kernel`: a control group in which the kernel ends what takes too much memory; where pages lie.
- `gpu`: what only a GPU can show, in one command; with `--device cpu`, what CPUs can.
- `browser`: a real browser without a screen.
- `syscalls`: kills at the calls of a forked child, without strace.
"""
