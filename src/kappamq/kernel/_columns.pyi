from kappamq.kernel.columns_reference import INTERFACE as INTERFACE
from kappamq.kernel.columns_reference import decode_columns as decode_columns
from kappamq.kernel.columns_reference import decode_properties as decode_properties
from kappamq.kernel.columns_reference import decode_record as decode_record
from kappamq.kernel.columns_reference import decode_records as decode_records
