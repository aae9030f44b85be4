"""Files of training data as a job file names them: token ids, and examples by column.

Standard library only. Imports `jobs.tables`.
"""
