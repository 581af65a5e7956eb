"""The job: options, the Beam graph, command line, progress, and the commands on its output."""
