"""The scheduler classes, on top of those of vLLM."""

from __future__ import annotations

from collections import deque
from math import inf
from time import time
from typing import TYPE_CHECKING, Any

from optsched.errors import OptschedError
from optsched.vllm.foresight import Foresight
from optsched.vllm.settings import Settings

if TYPE_CHECKING:
    from optsched.vllm.foresight import Outlook


def scheduler_class(name: str, base: Any, planned: bool) -> type:
    """Return one of the classes, on top of a scheduler of vLLM."""

    class Scheduler(base):  # type: ignore[misc]
        #: What it goes by; a subclass may set its own.
        settings = Settings()

        def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **more: Any) -> None:
            extra = vllm_config.additional_config
            given = extra.get("optsched", {}) if isinstance(extra, dict) else {}
            settings = self.settings.updated(given)
            _check_mode(name, vllm_config.scheduler_config)
            if settings.order is not None:
                vllm_config.scheduler_config.policy = "priority"
            super().__init__(vllm_config, kv_cache_config, *args, **more)
            sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
            longest = vllm_config.model_config.max_model_len
            self.foresight = Foresight(settings, kv_cache_config.num_blocks - 1, sizes, longest)
            self.lag = int("Async" in name)
            self._by_arrival: deque[Any] = deque()
            if planned:
                manager = self.kv_cache_manager
                self._allocate, manager.allocate_slots = manager.allocate_slots, self._if_it_fits

        def limit_of(self, request: Any) -> int:
            """Return the maximum number of tokens that a request may make."""
            room = self.max_model_len - request.num_prompt_tokens
            return int(min(request.max_tokens, room))

        def now(self) -> float:
            """Return the time on the clock of arrivals."""
            return time()

        def add_request(self, request: Any) -> None:
            """Let a request wait in its place."""
            if request.request_id not in self.requests:
                self._rank(request)
                if self.foresight.patience < inf:
                    self._by_arrival.append(request)
            super().add_request(request)

        def schedule(self, *args: Any, **more: Any) -> Any:
            """Form a batch."""
            due = self.now() - self.foresight.patience
            overdue = False
            while self._by_arrival and self._by_arrival[0].arrival_time < due:
                self._by_arrival.popleft().priority = -inf
                overdue = True
            if overdue:
                self.waiting.remove_requests(())  # which sorts the queue anew
            return super().schedule(*args, **more)

        def _rank(self, request: Any) -> None:
            """Set the priority of a request that waits."""
            if self.foresight.ordered and request.priority != -inf:
                made = request.num_output_tokens
                left = self.foresight.outlook(request, made, self.limit_of(request)).left
                request.priority = self.foresight.key(request.num_prompt_tokens + made, left)

        def _preempt_request(self, request: Any, *args: Any, **more: Any) -> None:
            self._rank(request)
            super()._preempt_request(request, *args, **more)

        def _free_request(self, request: Any, *args: Any, **more: Any) -> Any:
            if request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
                self.foresight.learn(request, request.num_output_tokens)
            return super()._free_request(request, *args, **more)

        def _if_it_fits(self, request: Any, *args: Any, **more: Any) -> Any:
            """Allocate blocks; none for a request whose admission would lead to preemptions."""
            if request.status.name in ("WAITING", "PREEMPTED") and self.running:
                group = map(self.looked_at, (*self.running, request))
                if not self.foresight.fit(group, self.lag):
                    return None
            return self._allocate(request, *args, **more)

        def looked_at(self, request: Any) -> tuple[int, int, int, Outlook]:
            """Return what a plan sees of a request."""
            made = request.num_output_tokens + request.num_output_placeholders
            limit = self.limit_of(request)
            look = self.foresight.outlook(request, made, limit)
            return request.num_prompt_tokens, made, limit, look

    Scheduler.__name__ = Scheduler.__qualname__ = name
    Scheduler.__module__ = "optsched.vllm"
    how = "planned" if planned else "ordered"
    Scheduler.__doc__ = f"vLLM's {base.__name__}, {how} by optsched."
    return Scheduler


def _check_mode(name: str, config: Any) -> None:
    """Refuse a class for the other way of scheduling."""
    wanted, given = "Async" in name, bool(config.async_scheduling)
    if wanted != given:
        other = name.replace("Async", "") if wanted else name.replace("Sch", "AsyncSch")
        raise OptschedError(
            f"optsched.vllm.{name} is for {'' if wanted else 'no '}asynchronous scheduling; start "
            f"the server with --{'' if wanted else 'no-'}async-scheduling, or use {other}"
        )
