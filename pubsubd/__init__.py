"""pubsubd: a Google Cloud Pub/Sub server that keeps exactly-once promises through `kill -9`."""

__version__ = "0.1.0"
