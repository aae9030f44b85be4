"""The parts of the OpenAPI document, which `openapi` combines."""
