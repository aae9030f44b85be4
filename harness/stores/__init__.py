"""Object stores on loopback, and trouble with them.

Each is a context with `url`, `env` (what a client needs in its environment), and `put`, `get`,
`sizes` and `uploads`, which ask it past every proxy. `client_env(url)` of its module is `env` for
clients that ask a proxy.

    s3            S3: moto's server, which holds its objects in memory
    moto_process  the program of that process
    gcs           Google Cloud Storage's XML API: ours
    azure         Azure Blob Storage: Azurite, which scripts/azurite installs
    hub           the Hugging Face Hub, for clients that read: ours
    hub_repos     what lies there
    static        a plain HTTP server of a directory: ours
    faults        a proxy in front of any of them, which counts requests and makes trouble
    trouble       what can become of a request, as values
    kinds         what a request is for, in one word
    listening     a server in a process of its own: started, awaited, ended
    loopback      a server of ours, in threads of this process
    content       the bytes of one object as HTTP has them
"""
