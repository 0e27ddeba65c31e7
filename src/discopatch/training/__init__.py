"""How the model learns: one step of the paper's algorithm, and a run that survives what happens around it."""
