"""Tables of `zerotoolsd.toml` that are longer than most.

elastic_config      when elastic jobs that run take more GPUs
notify_config       whom the daemon may tell what becomes of jobs
preemption_config   whether jobs make room for those of higher priority
warm_config         jobs that find torch imported
"""
