"""Collect the shards of one checkpoint from several nodes in one directory.

node_directory    a directory of a node, and its form on the command line
read_node_files   list, digest and send the files of a node, through its shell
node_survey       the files of all nodes by name, and those that an earlier run fetched
gather_plan       which node each file is fetched from
find_number_gaps  the numbers in file names, and files that seem to be missing
gather_files      carry out the plan, and the result as JSON
check_gathered    check that the collected files are a whole checkpoint
"""
