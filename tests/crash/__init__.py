"""What survives a server that is killed, runs out of disk, or loses power: promises checked from outside.

`load.py` talks to the server, `resources.py` changes topics and subscriptions, and both write down what they
were told (`log.py`); `run.py` kills the server again and again meanwhile; `promises.py` judges the log. After
each kill `database.py` reads a copy of the files, and `replay.py` obtains the same state from the journal
alone. `syscalls.py` records what a server asked of the operating system, for the proof that what was answered
survives a loss of power.
"""
