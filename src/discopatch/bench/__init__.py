"""The benchmark behind `discopatch bench`: suites of images, preprocessing, methods, metrics, tables and plots."""
