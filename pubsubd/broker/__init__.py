"""Topics, subscriptions and what they owe. Pure: commands in, effects out, time as an argument. See DESIGN.md."""
