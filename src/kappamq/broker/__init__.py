"""The broker: services on top of the store, one process, one event loop."""
