"""Object stores on loopback, and a proxy that causes faults.

Each store is a context manager. It has `url`, and `env` with the environment variables of a client.
Its methods `put`, `get`, `sizes` and `uploads` bypass every proxy. The function `client_env(url)`
of its module returns the environment variables of a client that uses a proxy.

    s3            S3: moto's server, which keeps its objects in memory
    moto_process  the program of moto's server
    gcs           Google Cloud Storage's XML API: a server of this package
    azure         Azure Blob Storage: Azurite, which scripts/azurite installs
    hub           the Hugging Face Hub, for clients that read: a server of this package
    hub_repos     the repositories of this Hub
    static        a plain HTTP server of a directory: a server of this package
    faults        a proxy in front of any store, which counts requests and causes faults
    trouble       the faults that can happen to a request
    kinds         the purpose of a request, in one word
    listening     a server in a separate process: starts it, waits for it, ends it
    loopback      a server in threads of this process
    content       the bytes of one object in HTTP answers
"""
