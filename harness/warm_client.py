"""Runs a program, if possible with torch already imported: `warm_client.py ADDRESS ARGUMENT...`.

`warm_interpreter` makes an interpreter from this program. The server at ADDRESS runs some programs
in a process that is forked with torch imported. This process then forwards signals to the forked
process, and ends with the same status. All other programs run in this process with Python itself.

It uses only the standard library, because it is started with `-I -S`.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run the program that the command line names."""
    address, *arguments = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(f"\0{address}")
    here = os.getcwd()  # noqa: PTH109  # pathlib takes as long to import as all else here
    request = {"arguments": arguments, "cwd": here, "env": dict(os.environ)}
    socket.send_fds(server, [json.dumps(request).encode()], [1])
    answer = server.recv(64)
    if not answer:  # it is for others
        server.close()
        os.execv(sys.executable, [sys.executable, *arguments])
    for number in PASSED_ON:
        signal.signal(number, lambda got, _: os.kill(int(answer), got))
    status = int(server.recv(64) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
