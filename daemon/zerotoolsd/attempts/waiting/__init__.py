"""The reasons that an attempt committed as launching does not start yet; it costs the job no
restart.

pending   jobs that are checked again later: the machine is not ready, or it is not their turn
mounted   file systems that the attempt before had, and that are not mounted now
loading   the order of jobs, if many restart at once
"""
