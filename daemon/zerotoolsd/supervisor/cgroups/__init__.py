"""Control groups (cgroup v2) that group and limit an attempt's processes, if permitted.

delegation   the group below which we may create others
group        the group of one attempt
limits       the limits of an attempt, in the form that the kernel reads

Sources: cgroup-v2 in the kernel's documentation; CGROUP_DELEGATION of systemd.
"""
