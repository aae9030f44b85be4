"""The process that trains: one rank of one attempt. Only this package imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`; nothing else imports this package.
Imports go down only, in this order:

    entry, process, session       the rank as a process, from its start to its end
    rehearsal                     the errors of a rank, reported before a job is queued
    starting, loop                the state at the start, and steps to the end
    references                    the reference log-probabilities of preferences
    engine_choice                 the engine that a job names
    leak_check                    whether tokens see hidden ones
    stretch_check                 whether ranks can compute parts of one sequence
    tensor_check                  whether tensor ranks compute what one rank does
    checkpointing                 when the loop saves
    engine_torch                  FSDP2, the optimizers, offload
    engine_deepspeed              DeepSpeed by the job's own JSON
    reporting                     progress to the supervisor and to the log
    evaluation                    loss, predictions, ROUGE and BLEU
    checkpoints                   complete or not at all, and their retention
    engine                        the interface of engines, and their shared code
    stretches                     sequences that several ranks compute together
    data                          files to tokens, tokens to batches
    model                         the model on the meta device, its sharding, its initial values
    memory                        the location of tensors: device, host, disk
    tensor_parallel               layers that several ranks compute together
    rank                          the identity of this rank, the other ranks, and its end
"""
