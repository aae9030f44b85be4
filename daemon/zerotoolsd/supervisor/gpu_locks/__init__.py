"""The locks of the machine's GPUs: which of several daemons' queues has which GPU.

    lock_directory.py  the files, which are not trusted, and how to lock one
    holders.py         the holders of a lock, from /proc/locks
    attempt_locks.py   the locks that a supervisor takes for its attempt

Each GPU has a file named by its UUID. Its directory belongs to root, and every user may create
files in it (mode 1777). Two flocks decide; the contents of the files are not used:

    the gate    exclusive, on the directory itself, held while a process checks and takes locks
    a GPU       shared, on its file, by a daemon as long as it leases the GPU, and by the supervisor
                and the keeper of each attempt on it as long as they live

A process takes a GPU with an exclusive lock, which fails while any other process has a lock. It
converts the lock to a shared one before it opens the gate. Only processes of the same queue join a
shared lock: a supervisor while the daemon that holds it lives, a daemon while one of its attempts
lives there. So the lock lives as long as the job, also without the daemon, and no descriptor is
passed on. The next daemon finds it again, and it disappears with the last process that holds it.

Other programs take part with `flock FILE COMMAND`: their lock is exclusive.
"""
