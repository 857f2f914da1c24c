"""The client: `core` decides, `aio` acts on an event loop, `blocking` puts that loop into a thread."""
