"""Decisions of the client as plain values and functions: no sockets, no clock, no randomness of their own."""
