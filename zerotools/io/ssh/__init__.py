"""Other machines, by the system's ssh.

ssh_host     a machine, in the user's spelling
ssh_command  the call of ssh, without questions, and its errors
far_shell    a script that runs on a machine, and its output
"""
