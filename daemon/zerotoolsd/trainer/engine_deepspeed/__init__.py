"""Engine `deepspeed`: DeepSpeed by the job's own JSON, in our loop and our commit.

engine                        what the loop drives
build_model                   the model as DeepSpeed takes it
place, builds, nvme           what DeepSpeed asks of the machine
files, record                 its part of a checkpoint, and what is written down of it
"""
