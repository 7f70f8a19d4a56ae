"""The requests that wait: a bounded queue in order of priority, fair between tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

from ..runtime.errors import OverloadedError
from .kv_blocks import BooksError
from .request import Request, RequestStatus

MAX_PASSED = 16  # starts of the first class while another waits; then one of that class starts
_MAX_TENANTS = 4096  # that are remembered while others come
_Key = TypeVar("_Key", int, str)


class _Tenant:
    """One tenant's share of the service, and its waiting requests."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0  # tokens charged, divided by the weight
        self.waiting = 0  # requests in the queue
        self.running = 0

    @property
    def is_present(self) -> bool:
        """Whether it has a request."""
        return self.waiting > 0 or self.running > 0


class WaitingQueue:
    """Owns the requests that have neither slot nor blocks.

    The order: lower `priority` first, but after `MAX_PASSED` starts of that class the oldest
    request of all other classes, so that none waits for ever; then requests that were paused; then
    the tenant that has been served least for its weight (virtual token counter: Sheng et al.,
    Fairness in Serving Large Language Models, OSDI 2024); then by arrival. A tenant is charged a
    request's prompt and longest answer when it starts, and gets back what it did not use. A tenant
    that comes back after a while begins at the least served one's count, so that it cannot save up
    service.
    """

    def __init__(
        self, max_requests: int, max_tokens: int | None, weights: Mapping[str, float]
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._weights = weights
        self._requests: dict[int, Request] = {}  # by number
        # By priority, then tenant: requests by number, which is the order of arrival.
        self._classes: dict[int, dict[str, dict[int, Request]]] = {}
        self._paused: dict[int, dict[int, Request]] = {}  # by priority
        self._tenants: dict[str, _Tenant] = {}
        self._passed = 0  # starts of the first class since one of another
        self.num_tokens = 0  # prompt tokens of those that have not run yet

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Mapping[int, Request]:
        """The waiting requests by number."""
        return self._requests

    def check_room(self, prompt_tokens: int) -> None:
        """Raise OverloadedError if the queue has no room for a prompt of that many tokens."""
        if len(self._requests) >= self._max_requests:
            raise OverloadedError(
                f"The queue holds {len(self._requests)} requests, the most it may; try again later."
            )
        most = self._max_tokens
        if most is not None and self.num_tokens and self.num_tokens + prompt_tokens > most:
            raise OverloadedError(
                f"The queue holds {self.num_tokens} prompt tokens and may hold {most}; this prompt "
                f"has {prompt_tokens}; try again later."
            )

    def append(self, request: Request) -> None:
        """Put a request into the queue."""
        self._requests[request.number] = request
        tenant = self._tenant(request.tenant)
        tenant.waiting += 1
        priority = request.params.priority
        if request.pauses:
            paused = self._paused.setdefault(priority, {})
            paused[request.number] = request
        else:
            self.num_tokens += request.prompt_tokens
            tenants = self._classes.setdefault(priority, {})
            tenants.setdefault(request.tenant, {})[request.number] = request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        del self._requests[request.number]
        self._tenants[request.tenant].waiting -= 1
        priority = request.params.priority
        if request.pauses:
            _discard(self._paused, priority, request.number)
        else:
            self.num_tokens -= request.prompt_tokens
            _discard(self._classes[priority], request.tenant, request.number)
            if not self._classes[priority]:
                del self._classes[priority]

    def start(self, request: Request) -> None:
        """Take out a request that starts, and charge its tenant."""
        priorities = self._priorities()
        is_first = request.params.priority == priorities[0]
        self._passed = self._passed + 1 if is_first and len(priorities) > 1 else 0
        tenant = self._tenants[request.tenant]
        tenant.running += 1
        if not request.pauses:
            request.charge = request.max_total_tokens - request.cached_tokens
            tenant.served += request.charge / tenant.weight
        self.remove(request)

    def ended(self, request: Request) -> None:
        """Give back what a running request that ends or pauses did not use of its charge."""
        tenant = self._tenants[request.tenant]
        tenant.running -= 1
        if request.status is not RequestStatus.WAITING:
            unused = request.max_total_tokens - len(request.tokens)
            tenant.served -= unused / tenant.weight

    def in_order(self, most: int) -> Iterator[Request]:
        """Yield the first requests in their order; those yielded may be taken out meanwhile."""
        passed: set[int] = set()
        for request in self._by_class(most):
            if self._passed >= MAX_PASSED:
                oldest = self._oldest_passed()
                if oldest is not None and oldest.number not in passed:
                    passed.add(oldest.number)
                    yield oldest
            if request.number not in passed:
                yield request

    def check(self) -> dict[str, Request]:
        """Return the requests by id; raise BooksError if one is not as a waiting request is."""
        for request in self._requests.values():
            if request.blocks or request.slot != -1 or request.status is not RequestStatus.WAITING:
                raise BooksError(f"request {request.request_id} waits but is {request.status}")
        listed = [number for paused in self._paused.values() for number in paused]
        for tenants in self._classes.values():
            listed += [number for requests in tenants.values() for number in requests]
        if sorted(listed) != sorted(self._requests):
            raise BooksError("a waiting request stands in no class, or in two")
        return {request.request_id: request for request in self._requests.values()}

    def _priorities(self) -> list[int]:
        """Return the classes that wait, in their order."""
        return sorted({*self._classes, *self._paused})

    def _by_class(self, most: int) -> Iterator[Request]:
        """Yield the first requests, class after class."""
        for priority in self._priorities():
            paused = self._paused.get(priority, {})
            yield from [paused[number] for number in sorted(paused)[:most]]
            queues = {
                name: list(islice(requests.values(), most))[::-1]
                for name, requests in self._classes.get(priority, {}).items()
            }
            while queues:
                name = min(queues, key=lambda n: (self._tenants[n].served, queues[n][-1].number))
                yield queues[name].pop()
                if not queues[name]:
                    del queues[name]

    def _oldest_passed(self) -> Request | None:
        """Return who arrived first of all classes but the first."""
        numbers: list[int] = []
        for priority in self._priorities()[1:]:
            numbers += [min(self._paused[priority])] if priority in self._paused else []
            numbers += [next(iter(group)) for group in self._classes.get(priority, {}).values()]
        return self._requests[min(numbers)] if numbers else None

    def _tenant(self, name: str) -> _Tenant:
        """Return a tenant that has a request now."""
        tenant = self._tenants.get(name)
        if tenant is None:
            self._forget_absent()
            tenant = self._tenants[name] = _Tenant(self._weights.get(name, 1.0))
        if not tenant.is_present:
            least = min((t.served for t in self._tenants.values() if t.is_present), default=0.0)
            tenant.served = max(tenant.served, least)
        return tenant

    def _forget_absent(self) -> None:
        """Keep the number of tenants that are remembered in bounds."""
        if len(self._tenants) >= _MAX_TENANTS:
            self._tenants = {n: t for n, t in self._tenants.items() if t.is_present}


def _discard(groups: dict[_Key, dict[int, Request]], key: _Key, number: int) -> None:
    group = groups[key]
    del group[number]
    if not group:
        del groups[key]
