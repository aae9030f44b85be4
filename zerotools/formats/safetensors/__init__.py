"""safetensors: a single file, or a Hugging Face directory of several files with an index.

header              the JSON header of a file, checked as the reference implementation checks it
choose_model_files  the files of a directory that hold the model
merge_rank_shards   one file per rank, merged; lost files
read                file or directory -> Checkpoint and TrainingState
lay_out             Checkpoint -> Target, which `from_pretrained` loads
format              the `Format` of safetensors
"""
