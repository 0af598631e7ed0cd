"""Messages of google.pubsub.v1 and google.iam.v1, and the well-known types they use; `pb.pyi` says which."""

from pubsubd.wire.pool import namespace

globals().update(namespace("google/"))
