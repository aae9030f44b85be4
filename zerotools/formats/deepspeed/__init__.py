"""DeepSpeed checkpoints: ZeRO stages 0 to 3 and BF16_Optimizer, as every version wrote them.

files     the grammar of file names in a tag directory
find      which tag directory a path means
flat      ranges of flat, partitioned vectors as chunks
geometry  where each parameter lies in the vectors of all ranks: stages 1 and 2, and stage 3
model     what a `*_model_states.pt` says
shards    what the `*_optim_states.pt` of all ranks say
copies    what is in several files and read from one, compared
saves     which files of a tag that was saved to again belong together
agreement whether files say of themselves that they are of one save, and in their place
pipeline  whether layer files and expert files are all there
column    one model-parallel rank's tensors, put together from the above
read      the whole checkpoint
training  what the files say of the run, in words that all formats share
order     how the order of parameters follows from the number of ranks
output    one file to be written, with what it carries over
settings  what the resuming run was asked to have
blueprint a checkpoint of one model-parallel rank before it is cut
recast    a blueprint for another stage
wanted    how a blueprint is to be laid out
lay_out   the whole checkpoint for another number of ranks, or another stage

universal           reading universal checkpoints, a directory per parameter
universal_files     the files of each parameter, and what of them is lost
universal_state     what their `optimizer_state.pt` says
universal_training  the same of the run, in words that all formats share
universal_contents  what goes into one, checked against what DeepSpeed's loaders take
universal_trees     what its files hold
universal_notes     what its loaders do not do
lay_out_universal   any checkpoint as a universal one
"""
