"""Bulk byte work of `model` and `wire`: pure functions on buffers, compiled where possible.

`KERNEL` names the implementation that was chosen: `compiled`, or `python` for the plain reference, which serves where
there is no compiler and where KAPPAMQ_KERNEL=python asks for it.
"""

import os

from kappamq.kernel import client_reference, columns_reference, reference, verify_reference
from kappamq.kernel.client_reference import encode_batch_rows, encode_sends, row_ids, scan_send_replies
from kappamq.kernel.columns_reference import (
    decode_columns,
    decode_properties,
    decode_record,
    decode_records,
)
from kappamq.kernel.reference import (
    PullPlan,
    PullWindow,
    answer_pulls,
    chain_keys,
    crc31,
    encode_record,
    encode_send_replies,
    gather_pulls,
    gather_records,
    java_hash,
    java_hash_extend,
    link_heads,
    place_sends,
    scan_pulls,
    scan_sends,
    scan_turn,
    split_frames,
    take_unique_id,
)
from kappamq.kernel.targets_reference import QueueTail, Targets
from kappamq.kernel.verify_reference import record_runs, valid_size, verify_entries

KERNEL = "python"
VERIFIER = "python"
"""Which of the two verifies records: the compiled one lets other threads run meanwhile."""

if os.environ.get("KAPPAMQ_KERNEL") != "python":
    try:
        from kappamq.kernel import _compiled
    except ImportError:
        pass
    else:
        # An extension that was built from older sources stays unused until it is built again.
        if _compiled.INTERFACE == reference.INTERFACE:
            from kappamq.kernel._compiled import (
                PullPlan,
                PullWindow,
                QueueTail,
                Targets,
                answer_pulls,
                chain_keys,
                crc31,
                encode_record,
                encode_send_replies,
                gather_pulls,
                gather_records,
                java_hash,
                java_hash_extend,
                link_heads,
                place_sends,
                scan_pulls,
                scan_sends,
                scan_turn,
                split_frames,
            )

            KERNEL = "compiled"
    try:
        from kappamq.kernel import _columns
    except ImportError:
        pass
    else:
        if _columns.INTERFACE == columns_reference.INTERFACE:
            from kappamq.kernel._columns import (
                decode_columns,
                decode_properties,
                decode_record,
                decode_records,
            )
    try:
        from kappamq.kernel import _verify
    except ImportError:
        pass
    else:
        if _verify.INTERFACE == verify_reference.INTERFACE:
            from kappamq.kernel._verify import record_runs, valid_size, verify_entries

            VERIFIER = "compiled"
    try:
        from kappamq.kernel import _client
    except ImportError:
        pass
    else:
        if _client.INTERFACE == client_reference.INTERFACE:
            from kappamq.kernel._client import encode_batch_rows, encode_sends, row_ids, scan_send_replies

__all__ = [
    "KERNEL",
    "VERIFIER",
    "PullPlan",
    "PullWindow",
    "QueueTail",
    "Targets",
    "answer_pulls",
    "chain_keys",
    "crc31",
    "decode_columns",
    "decode_properties",
    "decode_record",
    "decode_records",
    "encode_batch_rows",
    "encode_record",
    "encode_send_replies",
    "encode_sends",
    "gather_pulls",
    "gather_records",
    "java_hash",
    "java_hash_extend",
    "link_heads",
    "place_sends",
    "record_runs",
    "row_ids",
    "scan_pulls",
    "scan_send_replies",
    "scan_sends",
    "scan_turn",
    "split_frames",
    "take_unique_id",
    "valid_size",
    "verify_entries",
]
