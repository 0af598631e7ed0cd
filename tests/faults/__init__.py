"""Faults planted in a copy of the server's rules, and the proof that each of them is caught.

`planting` replaces source text of a module while it is imported, in a process of its own; `catalogue` is the
list, each fault with what has to catch it: simulated histories (`simulate`), or a case of the conformance
suite against a server that has the fault (`serve`). `test_faults` shows that every fault is caught, and that
without one nothing is.
"""
