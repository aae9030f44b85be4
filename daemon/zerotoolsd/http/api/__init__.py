"""The HTTP handlers. They call `service.job_requests`, and no lower layer."""
