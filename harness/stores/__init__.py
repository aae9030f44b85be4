"""Object stores on loopback, and a proxy that causes faults.

Each is a context with `url`, `env` (the environment variables of a client), and `put`, `get`,
`sizes` and `uploads`, which bypass every proxy. `client_env(url)` of its module is `env` for
clients of a proxy.

    s3            S3: moto's server, which keeps its objects in memory
    moto_process  the program of that process
    gcs           Google Cloud Storage's XML API: a server of this package
    azure         Azure Blob Storage: Azurite, which scripts/azurite installs
    hub           the Hugging Face Hub, for clients that read: a server of this package
    hub_repos     its repositories
    static        a plain HTTP server of a directory: a server of this package
    faults        a proxy in front of any of them, which counts requests and causes faults
    trouble       the faults of a request, as values
    kinds         the purpose of a request, in one word
    listening     a server in a separate process: started, awaited, ended
    loopback      a server in threads of this process
    content       the bytes of one object in HTTP answers
"""
