"""Acts before the memory of the host, or of a GPU that jobs share, is used up.

First no job starts, then the job of lowest value saves and yields, then it is ended; only then the
kernel acts.

host_reading     the host's memory, and that of the control group in which jobs run
host_forecast    samples -> the time until the memory is used up
escalation       that, and the jobs -> the next action: pure
host_guard       the loop: samples the host, and acts
gpu_forecast, gpu_escalation, gpu_guard
                 the same for GPUs: jobs that exceed their declaration
make_guards      both guards, from the parts of the daemon
"""
