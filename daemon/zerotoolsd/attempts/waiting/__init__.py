"""Why an attempt that is committed as launching does not begin yet; it costs the job no restart.

pending   jobs that are looked at again later: the machine is not ready, or it is not their turn
mounted   file systems that the attempt before had, and that are not mounted now
loading   whose turn it is, where many are started again at once
"""
