"""Push: messages are sent to HTTP endpoints, and what those answer becomes acks and nacks. See DESIGN.md."""
