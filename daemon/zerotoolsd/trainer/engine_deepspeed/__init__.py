"""Engine `deepspeed`: DeepSpeed by the job's own JSON, in our loop and our commit.

engine                        what the loop drives
model                         the model as DeepSpeed takes it
place                         what DeepSpeed asks of the machine
files, record                 its part of a checkpoint, and what is written down of it
"""
