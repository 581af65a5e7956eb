"""Where a job runs: on this machine, on a job service such as Flink's, or on Dataflow."""
