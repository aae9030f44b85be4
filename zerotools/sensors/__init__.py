"""Reads the state of the machine: GPUs through NVML, host memory, processors and pressure.

snapshot                     the state of the machine at one moment, as values
snapshot_source              takes snapshots, with `run_nvml_probe` and `host_sensor`
run_nvml_probe               GPUs, from a child process with deadlines
nvml_probe                   the child process that calls NVML
xids                         error numbers of the NVIDIA driver
foreign_gpu_memory           memory of a GPU that no job holds
excluded_and_preferred_gpus  GPUs that the configuration excludes from jobs or prefers
host_sensor                  memory, load, network and pressure of the host
cgroup_allowance             memory and processor cores that the process's control groups allow
numa                         NUMA nodes, and those near each GPU
cpu_lists                    lists of processors as the kernel writes them: `0-3,8`
"""
