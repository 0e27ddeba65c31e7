"""What `gpu_speed.py` is made of: a bench, how it measures, and the parts that it runs."""
