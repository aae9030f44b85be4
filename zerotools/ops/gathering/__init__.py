"""Collect the shards of one checkpoint from several nodes in one directory.

node_source                  a directory of a node, in the user's spelling
far_scripts                  the scripts for a node's shell
far_listing                  the files of a source
far_digests                  their SHA-256, made there, or from the bytes that are sent
far_contents                 their bytes
merging                      the files of all sources by name: equal and contradicting ones
brought                      the journal's entry of a file
node_survey                  the files of all sources, and those that exist already
node_threads                 the same for several sources at a time
gather_plan                  the source of each file
names_alone                  a check whether files of these names can be a checkpoint
number_gaps                  files that are missing by the numbers in the names of others
fetching                     the files of one source, byte by byte into the staging directory
gathering_run                a plan, carried out
staged_check                 a check whether the collected files are a whole checkpoint
gather_json                  all of this for programs
"""
