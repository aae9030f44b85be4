"""Tables of `zerotoolsd.toml` that are longer than most.

elastic_config      when running elastic jobs take more GPUs
notify_config       the recipients of notifications about jobs
preemption_config   whether jobs yield to those of higher priority
warm_config         jobs that start with torch imported
"""
