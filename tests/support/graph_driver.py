"""Runs a graph that was staged for Dataflow, as its workers would: `graph_driver FILE`.

The graph is its only input; the steps are unpickled from it.
"""

import sys
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def run(graph: beam_runner_api_pb2.Pipeline) -> None:
    for environment in graph.components.environments.values():
        # In this process instead of in a container.
        environment.urn = python_urns.EMBEDDED_PYTHON
        environment.payload = b""
        del environment.dependencies[:]
    FnApiRunner().run_via_runner_api(graph, PipelineOptions([])).wait_until_finish()


if __name__ == "__main__":
    run(beam_runner_api_pb2.Pipeline.FromString(Path(sys.argv[1]).read_bytes()))
