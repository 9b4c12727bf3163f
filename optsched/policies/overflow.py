"""Policies that fill the memory to a threshold and clear when it overflows (Jaillet Section 7).

They need to know neither outputs nor intervals: what counts is what is held now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optsched.errors import PolicyError


@dataclass(frozen=True)
class OverflowPolicy:
    """Admit in order of arrival up to a threshold; when the memory overflows, send requests back.

    A waiting request is admitted while the tokens held at the next step stay within
    (1 - alpha) of the memory; the first that does not fit ends the step. When the next step would
    not fit the memory, requests are sent back, as if they had never started, and wait at their
    place by arrival.

    Parameters
    ----------
    name
        Short name for tables and the command line.
    title
        What the policy does, in a few words.
    alpha
        Share of the memory that admission protects, in (0, 1).
    beta
        Probability with which each running request is sent back, in (0, 1), drawn again until the
        next step fits. None: all are sent back.

    Raises
    ------
    PolicyError
        If alpha or beta is not in (0, 1).

    Examples
    --------
    >>> from optsched import Instance, execute
    >>> execution = execute(Instance([0, 0], [6, 6], 10), "alpha-greedy:0.2")
    >>> print(execution.loop)
    repeats itself from step 0 on, every 5 steps, with requests 0, 1
    """

    name: str
    title: str
    alpha: float
    beta: float | None = None

    def __post_init__(self) -> None:
        for parameter in ("alpha", "beta"):
            value = getattr(self, parameter)
            if value is not None and not 0 < value < 1:
                raise PolicyError(
                    f"policy {self.name!r}: {parameter} is {value:g}, but must lie between 0 and 1"
                )

    def with_parameters(
        self, alpha: float | None = None, beta: float | None = None
    ) -> OverflowPolicy:
        """Give the policy other parameters, and a name that says so.

        Parameters
        ----------
        alpha, beta
            New values; None keeps what is there.

        Returns
        -------
        OverflowPolicy
            Named as on the command line, such as "alpha-beta-clearing:0.1,0.2".

        Raises
        ------
        PolicyError
            If a value is not in (0, 1), or beta is given to a policy that sends all back.

        Examples
        --------
        >>> GREEDY.with_parameters(alpha=0.3).name
        'alpha-greedy:0.3'
        """
        if beta is not None and self.beta is None:
            raise PolicyError(
                f"policy {self.name!r} sends all requests back and has no beta; leave it out, or "
                "take alpha-beta-clearing"
            )
        alpha = self.alpha if alpha is None else alpha
        beta = self.beta if beta is None else beta
        values = f"{alpha:g}" if beta is None else f"{alpha:g},{beta:g}"
        name = f"{self.name.partition(':')[0]}:{values}"
        return replace(self, name=name, alpha=alpha, beta=beta)

    def parsed(self, values: str) -> OverflowPolicy:
        """Give the policy the parameters that stand after the colon of its name.

        Parameters
        ----------
        values
            "ALPHA" or "ALPHA,BETA".

        Returns
        -------
        OverflowPolicy
            The policy with these parameters.

        Raises
        ------
        PolicyError
            If they are no numbers, too many or not in (0, 1).
        """
        form = "ALPHA" if self.beta is None else "ALPHA,BETA"
        try:
            numbers = [float(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= (1 if self.beta is None else 2):
            raise PolicyError(
                f"policy '{self.name}:{values}' should read {self.name}:{form}, with numbers "
                "between 0 and 1"
            )
        return self.with_parameters(*numbers)


# 0.3 and 0.1, 0.1 are among the values of Jaillet Section 7; the greedy one needs the larger alpha,
# because it loops where too little is protected.
GREEDY = OverflowPolicy("alpha-greedy", "to a threshold; an overflow sends all back", 0.3)
CLEARING = OverflowPolicy(
    "alpha-beta-clearing", "to a threshold; an overflow sends some back", 0.1, 0.1
)
OVERFLOW = (GREEDY, CLEARING)
