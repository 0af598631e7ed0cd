"""The gRPC shell: bytes in, bytes out, no rules. `run` puts the server together; see DESIGN.md."""
