"""Monte Carlo estimates of divergences, on request only."""
