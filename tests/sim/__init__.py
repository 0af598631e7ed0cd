"""One seed, one history: the server's own code over a simulated clock, network and disk; see DESIGN.md."""
