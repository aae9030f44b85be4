"""The HTTP API. Its handlers call `service.job_requests`, and no lower layer.

routes, server                    all routes, and the application that serves them
listening_sockets, bearer_tokens  the sockets that clients connect to, and the tokens for TCP
connection_limits                 limits the connections in all and of each user, and slow clients
request_gate                      runs before every handler: rate limits, authorization
authorize                         identifies the caller, and decides with `users.rights`
request_limits                    limits on one user's requests: per second, and at the same time
app_keys                          the keys with which handlers find the service and the page
request_validation                checks bodies and queries
jobs, job_outputs, machine, events, web_links, cleaning
                                  the handlers
visible_fields                    the part of a job that other users may see
responses, error_responses        responses and errors as JSON
openapi                           the OpenAPI document
"""
