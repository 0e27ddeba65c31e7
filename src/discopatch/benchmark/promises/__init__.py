"""What is promised beside finding strange images: few false alarms, fits on few images, what storage alone does."""
