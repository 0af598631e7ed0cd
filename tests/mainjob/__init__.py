"""The main job: real subscribers drain a subscription with exactly-once delivery while the server is killed.

`python -m tests.mainjob` runs it. The publisher and the subscribers are processes of their own that use the
unmodified google-cloud-pubsub library and write down what they see (`events`); the job starts and kills the
server and reads along (`job`); where it is killed often, a door lets clients wait for the next one (`front`).
The audit (`audit`) judges the record and the report (`report`) lists it.
"""
