"""The OpenAPI document of the API.

openapi_document    makes the whole document, and handles requests for it
request_paths       describes each path with its parameters, body and responses
answer_schemas      makes the schemas of responses
request_schemas     makes the schemas of request bodies
schema_builders     makes schemas of dataclasses, and describes requests
"""
