"""HTML pages about datasets: each one file, with its styles and scripts in it."""
