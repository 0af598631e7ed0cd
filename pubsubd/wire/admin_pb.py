"""Messages of pubsubd.admin.v1; `admin_pb.pyi` says which."""

from pubsubd.wire.pool import namespace

globals().update(namespace("pubsubd/admin/v1/"))
