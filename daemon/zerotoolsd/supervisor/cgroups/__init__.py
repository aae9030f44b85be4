"""Control groups (cgroup v2): how an attempt is held together and limited where the machine allows.

delegation   the group below which we may make others
group        the group of one attempt
limits       what an attempt may have, as the kernel is told it

Sources: cgroup-v2 in the kernel's documentation; CGROUP_DELEGATION of systemd.
"""
