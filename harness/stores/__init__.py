"""Object stores on loopback, and trouble with them.

s3            S3: moto's server, which holds its objects in memory
moto_process  the program of that process
faults        a proxy in front of any of them, which counts requests and makes trouble
trouble       what can become of a request, as values
kinds         what a request is for, in one word
listening     a server in a process of its own: started, awaited, ended
loopback      a server of ours, in threads of this process
"""
