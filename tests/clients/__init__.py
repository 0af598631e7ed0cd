"""Official client libraries against a real server process, used as their documentation says."""
