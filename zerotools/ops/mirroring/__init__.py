"""The checkpoints of a job, copied to an object store while it trains, and fetched from there.

    s3://bucket/run/.zerotools-run.json     whose run it is (`far_claim`)
                   /step-00000040/...       as on the disk, with the marker that every output has
                   /latest, best            text: the directory; hints only, as on the disk

far_claim        one run writes to a place, and another takes it over only where it resumes from it
far_copies       which checkpoints are there whole, and which of them go
send_copy        one checkpoint from the disk to the store
fetch_copy       one checkpoint from the store to the disk
mirror           a job's directory: what is still to be sent, and what is fetched before it begins
"""
