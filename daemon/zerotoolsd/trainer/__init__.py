"""The training process: one rank of one attempt. Only this package imports torch.

The supervisor starts a rank as `python -P entry.py --run-dir DIR`. No other package imports this
package. A module imports only modules that come later in this list:

    entry, run_rank           start a rank as a process, and end it with an exit status
    preflight_model_and_data  finds errors in a model and its data before the job is queued
    prepare_and_train         prepares a rank: data, model, engine, checkpoint
    start_or_resume, loop     the state before the first step, and the training loop
    coordinate_nodes          checks that nodes have the same model and see the same checkpoint
    dpo_reference             reference log-probabilities of preference pairs
    check_attention_leaks     tests that a model does not see hidden tokens
    check_sequence_parallel   tests that ranks can compute parts of one sequence
    check_tensor_parallel     tests that tensor ranks compute the same as one rank
    save_during_training      saves checkpoints during training, one after another
    engine_torch              trains with FSDP2, and can offload tensors to host memory or disk
    engine_deepspeed          trains with DeepSpeed and the job's own DeepSpeed JSON
    reporting                 log lines, datagrams to the supervisor, trackers
    evaluation                loss, generated text, ROUGE and BLEU
    checkpoints               saves checkpoints, chooses where a run resumes, deletes old ones
    engine                    the interface of engines, and the code that both engines share
    sequence_parallel         lets several ranks compute one sequence
    data                      converts files to tokens, and tokens to batches
    model                     builds the model on the meta device, its shards and initial values
    allocate_tensors          keeps tensors on the device, in host memory or on disk
    tensor_parallel           lets several ranks compute one layer
    rank                      this rank, its process group, its errors and exit codes
"""
