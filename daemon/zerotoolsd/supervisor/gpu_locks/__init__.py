"""The locks of the machine's GPUs: which queue has which, where several daemons run.

    lock_directory.py  the files, opened with distrust, and how one of them is taken
    holders.py         who holds a lock, by /proc/locks
    attempt_locks.py   what a supervisor takes for its attempt

Each GPU has a file named by its UUID in a directory that root made and in which everybody may make
files (mode 1777). Two flocks, and nothing that is written in a file, decide:

    the gate    exclusive, on the directory itself, by whoever looks and takes, for that instant
    a GPU       shared, on its file, by a daemon as long as it leases the GPU, and by the supervisor
                and the keeper of each attempt on it as long as they live

A GPU is taken by an exclusive lock, which nobody gets while anybody has any, and which becomes a
shared one before the gate is opened. A shared lock is joined only by those of the same queue: a
supervisor while the daemon that holds it lives, a daemon while an attempt of its own lives there.
So the lock outlives the daemon as long as the job, needs no descriptor to be handed over, is found
again by the next daemon, and is gone with the last process that has it, however that ends.

A program of somebody else takes part by `flock FILE COMMAND`: its lock is exclusive.
"""
