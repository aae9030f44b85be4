"""The process that trains: one rank of one attempt. The only place that imports torch.

The supervisor starts it as `python -P entry.py --run-dir DIR`; nothing else imports this package.

    entry, process, session       the rank as a process, and its life from first to last
    settings, group               who we are, and the other ranks
    corpus, tokenizing, reading   text and token files as one stream of tokens (also tokenstream)
    preparing, encoding           examples of prompts and responses as tokens (also examplestore)
    sequences, packing            what can be trained on, by number (also epochs)
    shuffle, batches              which of them a step trains on, at any number of ranks
    blueprint, sharding           the model on the meta device, then sharded (FSDP2)
    layout, memory, spill         what is kept of it, and where: device, host, disk (and prediction)
    building, initial, weights    what the shards begin with: the seed, or safetensors
    enginetype, engines           what the loop drives, and which one a job names
    torchengine, step             engine `torch`: one optimizer step, its part of a checkpoint
    deepspeed_*                   engine `deepspeed`: engine, model, files, record, and its place
    objective, collating          the loss, and tensors for it
    evaluating                    the loss on what is not trained on
    lora                          adapters by peft
    optimizer, schedule           what updates the weights (also adafactor)
    gradients, partition          the way there and back, at stage 1 by rows
    masters, courier              fp32 masters apart from the weights: offload, and stage 1
    lossscale                     what fp16 multiplies the loss by
    loop                          steps, until the end or a stop
    checkpointing, saves          when to save, at a standstill or beside training (also background)
    saving, committing, keeping   whole or not at all, and which stay (also output, measured)
    resuming, rng, stopping       where it goes on, and what asks it to stop
    state, loading, writing       their tensors (also checkedreader, finite)
    replicas, hostcopy            who writes which, and the copy that is written beside training
    notify, reporting, phases     progress to the supervisor and to the log (also utilization: MFU)
    failures, outofmemory         exit statuses, and why
"""
