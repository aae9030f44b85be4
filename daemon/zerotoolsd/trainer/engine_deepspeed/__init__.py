"""Engine `deepspeed`: runs DeepSpeed with the job's own JSON configuration in the trainer's loop.

engine                    the engine that the training loop calls
build_model               the model with its initial values, partitioned at stage 3
setup_deepspeed           imports DeepSpeed, and prepares compiled operators and NVMe directories
operator_build_directory  the directory and the locks for compiling operators
native_checkpoint         DeepSpeed's part of a checkpoint
"""
