"""The HTTP API. Its handlers call `service.answer_requests`, and no lower layer.

routes, server                    make the application from all routes, and serve it
listening_sockets, bearer_tokens  open the sockets for clients, and check the tokens of TCP clients
connection_limits                 limits the connections in all and of each user, and slow clients
authorize                         identifies the caller, and decides with `users.rights`
request_limits                    limits the requests of one user: per second, and at the same time
aiohttp_app_keys                  defines the keys with which handlers find the service and the page
request_validation                checks bodies and queries
jobs, job_outputs, clean_requests, import_job_file
                                  handle the requests for jobs
machine_and_daemon_requests, events
                                  handle the other requests
visible_fields                    decides which part of a job other users may see
responses                         makes responses and errors as JSON
openapi                           makes the OpenAPI document
"""
