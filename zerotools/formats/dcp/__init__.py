"""torch.distributed.checkpoint (DCP), as FSDP and `torch.distributed.checkpoint.save` write it.

accelerate_directory_names  the names of accelerate's directories for models and optimizers
kept_for_writer             values that the reader stores for the writer: `DcpNative`
several_directories         the DCP directories that form one checkpoint
key_paths                   the path of each value in the saved state dict
name_flat_keys              the tensor name and role of each flat key
model_sections              the models in a DCP, and the choice of one
optimizer_sections          the optimizers in a DCP
read                        DCP directory -> Checkpoint
training_state              DCP directory -> TrainingState
lay_out_rank_files          each rank's `.distcp` file, with the chunks that torch would save there
lay_out_resharded           a DCP for another world size, or for a zerotools job -> Target
lay_out_converted           a DCP from a checkpoint of another format -> Target
naming_styles               how torch, accelerate and torchtitan name the model and optimizer
thin                        a DCP without its optimizer state
format                      the `Format` of DCP

`zerotools.io.distcp` reads and writes `.metadata` and the items of `.distcp` files.
`zerotools.runs` reads and writes the record of a zerotools job.
"""
