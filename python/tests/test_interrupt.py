# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the library waits for other ranks."""

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import prunex
from prunex import Communicator
from worlds import run_ranks

# Far beyond what the test takes: a wait that is not broken off shows in the order of events.
TIMEOUT = 300


class Alarm:
    """Sends SIGINT to this process a little later, as a terminal would."""

    def __enter__(self):
        self._timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.start()

    def __exit__(self, *_):
        self._timer.join()


def _break_off(function):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Alarm(), pytest.raises(KeyboardInterrupt):
        function()


def _in_a_call(rank, size, kind):
    """Rank 1 makes no call that rank 0 waits for."""
    comm = Communicator(timeout=TIMEOUT)
    x = np.ones(1000, np.float32)
    if rank == 0:
        calls = {
            "all_reduce": lambda: comm.all_reduce(x),
            "request": lambda: comm.all_reduce(x, async_op=True).wait(),
            "broadcast": lambda: comm.broadcast(x),
            "recv": lambda: comm.recv(x, 1),
        }
        _break_off(calls[kind])
        assert comm._in_flight.buffers  # the library still has them
    elif kind == "recv":
        with pytest.raises(prunex.PeerLost, match="rank 0"):
            comm.all_reduce(x)  # what rank 0's close() does to the others
    else:
        time.sleep(1.5)
    comm.close()


@pytest.mark.parametrize("kind", ["all_reduce", "request", "broadcast", "recv"])
def test_ctrl_c_and_close_give_the_communicator_up(kind):
    run_ranks(_in_a_call, kind, nodes=(0, 1), deadline=60)


def _goes_on(rank, size):
    """Broken off, the call is still under way: once the other rank comes it ends well."""
    comm = Communicator(timeout=TIMEOUT)
    x = np.ones(1000, np.float32)
    if rank == 0:
        request = comm.all_reduce(x, async_op=True)
        _break_off(request.wait)
        assert not request.done() and x[0] == 1
        comm.send(np.zeros(1), 1)
        assert request.wait() is x
    else:
        comm.recv(np.zeros(1), 0)
        comm.all_reduce(x)
    assert (x == 2).all()
    comm.all_reduce(x)  # and the communicator is as good as before
    assert (x == 4).all()
    comm.close()


def test_the_call_goes_on():
    run_ranks(_goes_on, nodes=(0, 1), deadline=60)


def _before_the_others(rank, size):
    if rank == 0:
        _break_off(lambda: Communicator(timeout=TIMEOUT))


def test_ctrl_c_while_a_communicator_is_made():
    run_ranks(_before_the_others, nodes=(0, 1), deadline=60)


@pytest.mark.parametrize("kind", ["barrier", "agree"])
def test_ctrl_c_in_calls_without_a_request(kind):
    run_ranks(_no_request, kind, nodes=(0, 1), deadline=60)


def _no_request(rank, size, kind):
    comm = Communicator(timeout=TIMEOUT)
    if rank == 0:
        calls = {"barrier": comm.barrier, "agree": lambda: comm.agree_mask([1.0, 2.0], keep=1)}
        _break_off(calls[kind])
        comm.send(np.zeros(1), 1)
    else:
        comm.recv(np.zeros(1), 0)
        comm.barrier() if kind == "barrier" else comm.agree_mask([1.0, 2.0], keep=1)
    x = np.ones(3, np.float32)
    comm.all_reduce(x)  # behind the call that was broken off
    assert (x == 2).all()
    comm.close()


def test_a_request_is_not_pickled():
    with Communicator(0, 1, timeout=5) as comm:
        request = comm.all_reduce(np.ones(3), async_op=True)
        with pytest.raises(TypeError, match="Request is a call in flight .*wait"):
            pickle.dumps(request)
        request.wait()
