"""What routers lose on eight workers without a barrier, as in docs/workers.md.

R is the family `chat-and-summaries` with 16,492 tokens per worker and load 0.9. Prints a table for
the documentation: `python benchmarks/routers.py [--requests N] [--time-limit S] [--seed N]`.
"""

from __future__ import annotations

import click

from optsched import family, routing_loss
from optsched._internal.numbers import percent, proven

WORKERS, LOAD = 8, 0.9
ROUTERS = (
    *("round-robin", "random", "jsq", "power-of-d", "vllm-dp", "vllm-dp-tokens"),
    *("least-work", "least-kv", "least-tokens"),
)
POLICIES = ("fcfs", "area")


@click.command()
@click.option("--requests", default=4000)
@click.option("--time-limit", default=120.0)
@click.option("--seed", default=1)
def main(requests: int, time_limit: float, seed: int) -> None:
    """Print the losses of all routers and policies."""
    trace = family("chat-and-summaries", n=requests, seed=seed, load=LOAD * WORKERS)
    found = routing_loss(trace, WORKERS, ROUTERS, POLICIES, time_limit=time_limit)
    print(
        f"best known {found.best.high:,.0f}, at least {proven(found.best.low)} by {found.method}, "
        f"gap {percent(found.gap, 2)}; {found.seconds:.0f} s\n"
    )
    print("| router, policy | mean latency | loss | placement | order |\n|---|---|---|---|---|")
    widest = 0.0
    for each in sorted(found, key=lambda each: each.cost):
        parts = " | ".join(map(str, (each.loss, each.placement, each.order)))
        name = f"`{each.run.router}`, `{each.run.policy}`"
        print(f"| {name} | {each.run.mean_latency:,.1f} | {parts} |")
        widest = max(widest, each.loss.high - each.loss.low)
    print(f"\nloss known within {100 * widest:.2f} points")


if __name__ == "__main__":
    main()
