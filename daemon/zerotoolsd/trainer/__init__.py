"""The process that trains: one rank of one attempt. The only place that imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`; nothing else imports this package.
Imports go down only, in this order:

    entry, process, session       the rank as a process, and its life from first to last
    rehearsal                     what a rank would refuse, said before a job is queued
    starting, loop                the state at the start, and steps to the end
    references                    what the start weights say of preferences
    engine_choice                 the engine that a job names
    leak_check                    whether tokens see what they must not
    stretch_check                 whether ranks can compute parts of one sequence
    tensor_check                  whether tensor ranks compute what one rank does
    checkpointing                 when the loop saves
    engine_torch                  FSDP2, the optimizers, offload
    engine_deepspeed              DeepSpeed by the job's own JSON
    reporting                     progress to the supervisor and to the log
    evaluation                    loss, predictions, ROUGE and BLEU
    checkpoints                   whole or not at all, and which stay
    engine                        what every engine is, and what both share
    stretches                     sequences that several ranks compute together
    data                          files to tokens, tokens to batches
    model                         the model on the meta device, cut among ranks, its first values
    memory                        where tensors live: device, host, disk
    tensor_parallel               layers that several ranks compute together
    rank                          who this rank is, the other ranks, and how it ends
"""
