"""What goes over the wire: message classes and the table of RPCs, from `proto/`.

`pb` holds google.pubsub.v1 and google.iam.v1 together with Empty, Timestamp, Duration, FieldMask and Struct;
`admin_pb` holds pubsubd.admin.v1. Both are made at import from a descriptor pool of our own (see `pool`), so
their classes are not those of `google.cloud.pubsub_v1` nor of `google.protobuf.timestamp_pb2`: a message of
one kind cannot be assigned to a field of the other. Their bytes and their JSON are the same.
"""

from pubsubd.wire import admin_pb, pb
from pubsubd.wire.pool import POOL
from pubsubd.wire.services import SERVICES, Method

__all__ = ["POOL", "SERVICES", "Method", "admin_pb", "pb"]
