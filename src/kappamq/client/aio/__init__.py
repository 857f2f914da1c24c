"""The asyncio front: acts on what `core` decides, with sockets, tasks and timers."""
