"""The ack journal: events packed into fixed-width records, appended by the commit that makes them true."""
