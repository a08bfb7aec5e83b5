"""How a rollout ended: its stop reason, and what went wrong if something did."""
