"""The remoting protocol without I/O: bytes in, values out."""
