import signal
import time

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F30"
TRICK = "Blocks every signal that can be blocked, ignores the rest, and hangs."
CHECK = "timeout"
TWIN_OF = "f08_hangs_in_a_call"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            time.sleep(1)
