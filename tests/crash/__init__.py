"""What survives a server that is killed, runs out of disk, or loses power: promises checked from outside.

`plan.py` draws subscriptions with features of all kinds. `load.py` publishes to them and consumes from them;
`changes.py` seeks and changes them meanwhile, `resources.py` and `snapshots.py` create, change and delete
others, and all write down what they were told (`log.py`). `run.py` kills the server again and again.

After each kill `database.py` reads a copy of the files, `replay.py` (with `order.py`, for ordering keys)
obtains the same state from the journal alone and says whether all of it was lawful, and `compare.py` compares
the two. At the end `told.py` compares what clients were told with the journal, and `promises.py` judges what
can be judged without a look at that.

`syscalls.py` records what a server asked of the operating system, for the proof that what was answered
survives a loss of power.
"""
