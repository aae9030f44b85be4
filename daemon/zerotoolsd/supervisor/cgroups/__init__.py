"""Control groups (cgroup v2): they group the processes of an attempt and limit them if the machine
allows it.

delegation   the group below which we may create others
group        the group of one attempt
limits       the limits of an attempt, in the form that the kernel reads

Sources: cgroup-v2 in the kernel's documentation; CGROUP_DELEGATION of systemd.
"""
