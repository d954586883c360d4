"""Many runs: grids of experiments, the published tables, and the machines that play them."""
