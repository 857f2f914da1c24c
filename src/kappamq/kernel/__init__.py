"""Bulk byte work of `model` and `wire`: pure functions on buffers, compiled where possible.

`KERNEL` names the implementation that was chosen: `python` is the plain reference.
"""

from kappamq.kernel.reference import (
    crc31,
    encode_record,
    java_hash,
    java_hash_extend,
    split_frames,
)

KERNEL = "python"

__all__ = ["KERNEL", "crc31", "encode_record", "java_hash", "java_hash_extend", "split_frames"]
