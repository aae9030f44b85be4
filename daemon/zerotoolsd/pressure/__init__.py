"""Acts before the memory of the host, or of a GPU that jobs share, is used up.

First no job starts, then the job of lowest value saves and yields, then it is ended; only then the
kernel acts.

    host_reading   the host's memory, and that of the control group in which jobs run
    forecast       samples -> the time until the memory is used up
    ladder         that, and the jobs -> the next action: pure
    guard          the loop: samples the host, and acts
    gpu_forecast, gpu_ladder, gpu_guard
                   the same for GPUs: jobs that exceed their declaration
    room_asking    asks jobs to yield, and ends them
"""
