"""The parts of the OpenAPI document: what `openapi` puts together."""
