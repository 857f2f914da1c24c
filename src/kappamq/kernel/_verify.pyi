from kappamq.kernel.verify_reference import INTERFACE as INTERFACE
from kappamq.kernel.verify_reference import record_runs as record_runs
from kappamq.kernel.verify_reference import valid_size as valid_size
from kappamq.kernel.verify_reference import verify_entries as verify_entries
