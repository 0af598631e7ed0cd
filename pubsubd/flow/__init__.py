"""Flow control and fairness: how much a consumer may hold, and who gets what. Pure; see DESIGN.md."""
