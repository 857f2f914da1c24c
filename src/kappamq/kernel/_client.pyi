from kappamq.kernel.client_reference import INTERFACE as INTERFACE
from kappamq.kernel.client_reference import encode_batch_rows as encode_batch_rows
from kappamq.kernel.client_reference import encode_sends as encode_sends
from kappamq.kernel.client_reference import row_ids as row_ids
from kappamq.kernel.client_reference import scan_send_replies as scan_send_replies
