"""A real server, real clients, real Spark: what the analytics say of a journal that was really written."""
