"""The child process that talks to NVML, because the driver can hang for good.

It imports nothing of zerotools but this folder. For every line that it reads on stdin it writes one
JSON object on stdout, `{"gpus": [...], "error": null | str}`, whose GPUs have the fields of
`zerotools.sensors.snapshot.Gpu`; it ends at the end of its input. `NvmlProbe` is the other side.

entry            the process
session          NVML, initialised when it first works, and all of its GPUs
gpu_values       one GPU: identity, memory, processes
optional_values  what a driver may not tell of it
xid_reports      what the driver says has gone wrong
"""
