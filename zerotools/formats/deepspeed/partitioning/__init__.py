"""How ZeRO partitions parameters over ranks: the position of each element in the flat buffers.

Used to read files and to lay out a target. Imports only `schema`.

flat_layout        the position of parameters in a flat buffer; begins with a drawn example
parameter_order    the order of parameters in a flat buffer, and alignment
expert_blocks      blocks of AutoEP's experts, as parts of the tensors of all of them
flat_groups        the flat buffers of one model-parallel rank, from its files
mp_rank            the tensors of one model-parallel rank
pipeline_layers    the layers that a pipeline stage can have besides those that it names
weight_pairs       masters and the weights that are casts of them
whole_parameters   whole momenta instead of partitions, as Muon has them
swap_files         the files in which the optimizer lay on NVMe
native             the values for the format's own writers: the model-parallel ranks
"""
