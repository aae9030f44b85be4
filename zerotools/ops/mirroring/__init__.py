"""The checkpoints of a job, copied to an object store while it trains, and fetched from there.

    s3://bucket/run/.zerotools-run.json     the owning run (`far_claim`)
                   /step-00000040/...       as on the disk, with the marker that every output has
                   /latest, best            text: the directory; hints only, as on the disk

far_claim        one run writes to a prefix, and another takes it over only if it resumes from it
far_copies       the whole checkpoints there, and those to remove
send_copy        one checkpoint from the disk to the store
fetch_copy       one checkpoint from the store to the disk
mirror           a job's directory: checkpoints to send, and those to fetch before it begins
"""
