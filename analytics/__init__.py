"""What the ack journal of pubsubd says: was every promise kept, how do subscriptions fare, what should change.

Reads the segments that a server leaves, with Apache Spark, and imports nothing from the server.
"""
