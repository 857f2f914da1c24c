"""Typed administration of a cluster, used by the command line and the console alike. Start with `admin.Admin`."""
