"""Before the host's memory, or that of a GPU which jobs share, is used up: no job starts, then the
job of lowest value saves and makes room, then it is ended; only then comes the kernel.

    host_reading   the host's memory, and that of the control group in which jobs run
    forecast       samples -> how soon the memory is gone
    ladder         that, and the jobs -> what is done now: pure
    guard          the loop: looks at the host, and does it
    gpu_forecast, gpu_ladder, gpu_guard
                   the same for GPUs: who takes more than it declared
    room_asking    jobs are asked to make room, and ended
"""
