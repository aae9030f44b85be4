"""Copy the checkpoints of a job to an object store while it trains, and fetch them from there.

    s3://bucket/run/.zerotools-run.json     the run that owns the prefix (`prefix_owner`)
                   /step-00000040/...       a checkpoint as on the disk, with the marker of outputs
                   /latest, best            the name of a checkpoint's directory, as text

checkpoint_mirror       which checkpoints of a job to send, and which to fetch before it begins
prefix_owner            the run that may write to a prefix; a run that resumes there replaces it
list_and_remove_copies  the complete checkpoints in the store, and the removal of old ones
send_copy               send one checkpoint from the disk to the store
fetch_copy              fetch one checkpoint from the store to the disk
"""
