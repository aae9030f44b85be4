"""Carry out a plan: copy the bytes of a source to a target on disk or in memory.

plan_copies      match the bytes of the source to the chunks of the target, and prove the match
tiles            cut copies to the size of a buffer
tile_workers     the threads that fill tiles, within a memory budget
read_in_blocks   read the elements of tensors in order, block by block
fill_tile        read and cast the bytes of one tile
write_files      create the files of an output, fill them, and add their checksums
execute          write a whole output, and give it its name
output_part      the number of a part
divide_output    the division of an output into N parts, one for each of N runs
execute_part     write one of these parts
resume_identity  the inputs of an output; an interrupted run is resumed only with the same inputs
load_arrays      load tensors into memory as numpy arrays

Imports no other package of `ops`.
"""
