"""Engine `deepspeed`: DeepSpeed with the job's own JSON, in our loop, with our commits.

engine                        the engine that the loop drives
build_model                   the model in the form for DeepSpeed
place, builds, nvme           DeepSpeed's requirements for the machine
files, record                 its part of a checkpoint, and of the record
"""
