"""The partitioning of parameters over ranks by ZeRO: the position of each element in the flat
buffers.

The packages `reading` and `writing` both use this package. Of the format's packages, it imports
only `schema`.

flat_layout                the position of parameters in a flat buffer; begins with a drawn example
flat_groups                a model-parallel rank's flat buffers, from its files; parameter order
stack_experts              blocks of AutoEP's experts, as parts of the stacked tensors
assemble_mp_rank           the tensors of one model-parallel rank
read_nvme_swap_files       optimizer state in files on NVMe
kept_for_writer            values that the reader stores for the writers
pair_masters_with_weights  pairs of a master and the weight that was cast from it
"""
