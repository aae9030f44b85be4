"""The OpenAPI document of the API.

openapi_document    makes the whole document, and handles requests for it
request_paths       each path with its parameters, body and responses
answer_schemas      the schemas of responses
request_schemas     the schemas of request bodies
json_schemas        schemas of dataclasses; functions that describe a request
"""
