"""The client libraries, and the API description that they are built from."""
