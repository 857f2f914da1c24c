from kappamq.kernel.reference import INTERFACE as INTERFACE
from kappamq.kernel.reference import crc31 as crc31
from kappamq.kernel.reference import encode_record as encode_record
from kappamq.kernel.reference import java_hash as java_hash
from kappamq.kernel.reference import java_hash_extend as java_hash_extend
from kappamq.kernel.reference import split_frames as split_frames
