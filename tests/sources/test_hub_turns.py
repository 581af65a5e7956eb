"""The turns in which processes and threads ask the hub."""

from support.fresh_interpreter import run_program


def test_threads_of_two_processes_wait_for_each_other_without_a_deadlock() -> None:
    """The system would see one: each process holds some turns, and waits for the others."""
    program = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from fineshards.sources.places.hub_files import _in_turn

def ask(number):
    with _in_turn(str(number)):
        time.sleep(0.002)

child = os.fork()
with ThreadPoolExecutor(16) as pool:
    list(pool.map(ask, range(400)))
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    sys.stdout.flush()
    os._exit(0)
print("all had their turn")
"""
    assert run_program(program).stdout == "all had their turn\n"
