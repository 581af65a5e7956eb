"""Where a job runs: this machine, a job service such as Flink's, Dataflow."""
