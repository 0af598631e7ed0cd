"""SQLite: one writer, one transaction per commit, and reads that never wait for it. See DESIGN.md."""
