"""The paper's own studies, run again: normalisation layers, batch statistics, patch counts, random seeds, spectra."""
