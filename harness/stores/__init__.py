"""Object stores on loopback, and trouble with them.

listening     a server in a process of its own: started, awaited, ended
s3            moto's S3, which holds its objects in memory
moto_process  the program of that process
"""
