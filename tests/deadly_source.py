"""An instance that cannot be made: any process that tries is killed, as if out of memory."""

import os
import signal

from optsched.experiments.sweep_plan import Source


class DeadlySource(Source):
    """Kills its process."""

    def make(self, seed):
        os.kill(os.getpid(), signal.SIGKILL)
