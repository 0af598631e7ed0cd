"""The conformance suite: what an endpoint promises its clients, seen from outside over raw gRPC."""
