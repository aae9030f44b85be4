"""The child process of `NvmlProbe`, which calls NVML, because the driver may hang forever.

It imports only this folder of zerotools. For every line on stdin it writes one JSON object on
stdout, `{"gpus": [...], "error": null | str}`. The GPUs have the fields of
`zerotools.sensors.snapshot.Gpu`. The process ends when its stdin ends.

entry            the start of the process
read_gpu         reads all GPUs: identity, memory, processes, and values that a driver may lack
xid_reports      the driver's error reports
"""
