"""The training process: one rank of one attempt. Only this package imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`. No other package imports it. A
module imports only modules that come after it in this list:

    entry, process              start a rank as a process, and end it with an exit status
    dry_run                     reports the errors of a rank before its job is queued
    session                     prepares a rank: data, model, engine, checkpoint
    initial_state, loop         the state at the first step, and the training loop
    multi_node                  agreements between the nodes of a job
    dpo_reference               reference log-probabilities of preference pairs
    attention_self_test         tests that a model does not see hidden tokens
    sequence_parallel_self_test tests that ranks can compute parts of one sequence
    tensor_parallel_self_test   tests that tensor ranks compute the same as one rank
    background_saves            when checkpoints are saved during training
    engine_torch                FSDP2, optimizers, offload
    engine_deepspeed            DeepSpeed with the job's own JSON
    reporting                   log lines, datagrams to the supervisor, trackers
    evaluation                  loss, generated text, ROUGE and BLEU
    checkpoints                 saves a checkpoint, chooses the one to resume from, deletes old ones
    engine                      the interface of engines, and the code that both engines share
    sequence_parallel           one sequence computed by several ranks
    data                        files to tokens, tokens to batches
    model                       the model on the meta device, its shards, its initial values
    memory_tiers                tensors on the device, in host memory, on disk
    tensor_parallel             layers that several ranks compute together
    rank                        this rank, its process group, its errors and exit codes
"""
