"""Before the host's memory is used up: no job starts, then the job of lowest value saves and makes
room, then it is ended; only then comes the kernel.

    forecast    samples -> how soon the memory is gone
    ladder      that, and the jobs -> what is done now: pure
    guard       the loop: looks, and does it
"""
