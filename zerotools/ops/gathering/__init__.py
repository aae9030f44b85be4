"""Shards of one checkpoint that lie on several nodes, brought together in one directory.

node_source                  a directory of a node, as a user writes it
far_scripts                  what a node's shell is asked to do
far_listing                  the files of a source
far_digests                  their SHA-256, made there, or of what is sent
far_contents                 their bytes
merging                      the files of all sources by name: what is equal, and what cannot be
brought                      what the journal says of a file
node_survey                  what all sources have, and what is there already
node_threads                 the same for several sources at a time
gather_plan                  which file comes from where
names_alone                  whether files of these names can be a checkpoint
number_gaps                  files that are missing by the numbers in the names of others
fetching                     the files of one source, byte by byte into the staging directory
gathering_run                a plan, carried out
staged_check                 whether what was brought together is a whole checkpoint
gather_json                  all of this for programs
"""
