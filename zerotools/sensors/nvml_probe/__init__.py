"""The child process that calls NVML, because the driver can hang forever.

It imports only this folder of zerotools. For every line that it reads on stdin it writes one JSON
object on stdout, `{"gpus": [...], "error": null | str}`, and its GPUs have the fields of
`zerotools.sensors.snapshot.Gpu`; it ends at the end of its input. `NvmlProbe` is the other side.

entry            the process
session          NVML, initialised when it first works, and all of its GPUs
gpu_values       one GPU: identity, memory, processes, and values that a driver may lack
xid_reports      the driver's error reports
"""
