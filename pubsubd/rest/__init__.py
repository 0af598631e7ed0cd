"""One port for gRPC and for REST. See DESIGN.md."""
