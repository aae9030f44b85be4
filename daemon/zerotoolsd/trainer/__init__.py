"""The process that trains: one rank of one attempt. The only place that imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`; nothing else imports this package.

    entry, process, session       the rank as a process, and its life from first to last
    settings, group               who we are, and the other ranks
    starting, loop, evaluating    the state at the start, steps to the end, measuring on the way
    enginetype, engines           what the loop drives, and which one a job names
    schedule, lossscale, rng      what follows from the step alone
    stopping                      what asks the loop to stop
    prediction                    what the state of a rank will take
    pagelock                      host memory that a GPU copies to and from by itself
    notify, reporting, phases     progress to the supervisor and to the log (also utilization: MFU)
    failures, outofmemory         exit statuses, and why

    generation                    evaluation by generation: predictions, ROUGE and BLEU
    data                          files to tokens, tokens to batches
    model                         the model on the meta device, what it begins with, its loss
    engine_torch                  FSDP2, the optimizers, offload
    engine_deepspeed              DeepSpeed by the job's own JSON
    checkpoints                   whole or not at all, and which stay
"""
