"""Runs moto's server on a port of loopback until standard input ends: `moto_process.py PORT`."""

from __future__ import annotations

import logging
import sys
from threading import Thread

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it has a line for each request
    server = make_server(
        "127.0.0.1",
        int(sys.argv[1]),
        DomainDispatcherApplication(create_backend_app),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
