"""What the ack journal of pubsubd says: was every promise kept, and how do subscriptions fare?

Reads the segments that a server leaves, with Apache Spark, and imports nothing from the server.
"""
