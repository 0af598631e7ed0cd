"""The benchmark: what a message costs here and on other servers, in one run (`python -m tests.bench`).

Two cores are often all there is, and the load generator sits on them too. So it sends requests packed
beforehand, hands raw bytes to gRPC, and reads with protobuf's C parser, which beats a scanner written in
Python (0.4 against 0.7 µs a message). What it costs all the same is in the JSON.

The server's cost is CPU time, user and system, of all its threads, from the first request until it has
gone quiet again: work put off until after the last answer is work too.
"""
