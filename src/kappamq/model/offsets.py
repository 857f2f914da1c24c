"""Distinct types for the offsets that must never be mixed up.

A range of offsets is always `start` inclusive, `end` exclusive.
"""

from typing import NewType

LogOffset = NewType("LogOffset", int)
"""Position in bytes in the commit log."""

QueueOffset = NewType("QueueOffset", int)
"""Position of a message within one queue."""
