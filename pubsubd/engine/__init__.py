"""One loop: clock, one timer, commit, then reply. See DESIGN.md."""
