"""Exactly-once delivery: leases, ack ids and the verdict on every id a client names. Pure; see DESIGN.md."""
