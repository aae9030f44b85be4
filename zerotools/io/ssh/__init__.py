"""Other machines, by the system's ssh.

ssh_host     a machine, as a user writes it
ssh_command  how ssh is called: it asks nothing, and what it says where it fails
far_shell    a script that runs on a machine, and what it prints
"""
