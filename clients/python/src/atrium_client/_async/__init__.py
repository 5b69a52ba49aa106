"""The client; the synchronous one is derived from this package when the distribution is built."""
