"""CPU seconds in place of wall time: import it before optsched, which then goes by them throughout.

Limits and times are those of the process, which other work on the machine hardly changes.
"""

from __future__ import annotations

import sys
import time

OPTION = "--cpu"
#: The arguments of the script without the option.
ARGUMENTS = [each for each in sys.argv[1:] if each != OPTION]

if OPTION in sys.argv:
    time.perf_counter = time.process_time
