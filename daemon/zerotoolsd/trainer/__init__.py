"""The training process: one rank of one attempt. Only this package imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`; nothing else imports this package.
Imports go down only, in this order:

    entry, process, session       the rank as a process, from its start to its end
    dry_run                       the errors of a rank, reported before a job is queued
    initial_state, loop           the state at the start, and steps to the end
    dpo_reference                 the reference log-probabilities of preferences
    engine_choice                 the engine that a job names
    attention_leak_check          whether tokens see hidden ones
    sequence_parallel_check       whether ranks can compute parts of one sequence
    tensor_parallel_check         whether tensor ranks compute what one rank does
    checkpointing                 when the loop saves
    engine_torch                  FSDP2, the optimizers, offload
    engine_deepspeed              DeepSpeed by the job's own JSON
    reporting                     progress to the supervisor and to the log
    evaluation                    loss, predictions, ROUGE and BLEU
    checkpoints                   complete or not at all, and their retention
    engine                        the interface of engines, and their shared code
    sequence_parallel             sequences that several ranks compute together
    data                          files to tokens, tokens to batches
    model                         the model on the meta device, its sharding, its initial values
    nf4                           layers with weights in 4 bits
    memory                        the location of tensors: device, host, disk
    tensor_parallel               layers that several ranks compute together
    rank                          the identity of this rank, the other ranks, and its end
"""
