"""The signals that end a run: SIGINT, SIGTERM and SIGUSR1, which a cluster can send some time before it kills the job."""

import signal
import threading
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()))


class Stop:
    """A context manager that records the first of the `SIGNALS`.

    A second signal has its default effect: KeyboardInterrupt, or the end of the process. Signals are recorded only if the context
    is entered in the main thread.

    Attributes:
        asked: the recorded signal; None until a signal arrives.
    """

    def __init__(self):
        self.asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def _note(self, number: int, _) -> None:
        self.asked = signal.Signals(number)
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
