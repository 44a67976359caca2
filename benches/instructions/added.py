"""Owns what a feature adds to a request by count, and what that is of its CPU time. Plain data."""

from dataclasses import dataclass
from statistics import median

from baseline import Count

# Below this, a difference of system calls per request is one of when requests arrive.
CALLS_NOISE = 0.1
# What the budget of a feature is for that costs every few seconds.
REQUESTS_PER_SECOND = 20_000
# By what two processes with the same configuration differ, as a share of the CPU time.
NOISE = 0.001
# The share of user mode in the CPU time of a request by which a check judges: what is measured depends on how busy the machine is.
USUAL_USER_SHARE = 0.4


@dataclass(frozen=True)
class Added:
    """What a request costs without a feature, and what the feature adds to it."""

    instructions: float
    system_calls: float
    more_instructions: float
    more_system_calls: float

    @staticmethod
    def between(without: list[Count], having: list[Count]) -> "Added":
        """The difference of the medians."""
        instructions, system_calls = (median(getattr(one, what) for one in without) for what in ("instructions", "system_calls"))
        return Added(
            instructions,
            system_calls,
            median(one.instructions for one in having) - instructions,
            median(one.system_calls for one in having) - system_calls,
        )

    @staticmethod
    def periodic(without: list[Count], instructions_per_second: float) -> "Added":
        """What costs every few seconds, as a part of each of as many requests as the budget is for."""
        instructions = median(one.instructions for one in without)
        return Added(instructions, median(one.system_calls for one in without), instructions_per_second / REQUESTS_PER_SECOND, 0)

    @property
    def share_of_instructions(self) -> float:
        return self.more_instructions / self.instructions

    def share_of_cpu(self, user_share: float) -> float:
        """What it adds to the CPU time of a request, of which `user_share` is spent in user mode: instructions there, and system calls
        in the kernel, each take what the others of the same request take."""
        calls = self.more_system_calls / self.system_calls if abs(self.more_system_calls) >= CALLS_NOISE else 0.0
        return user_share * self.share_of_instructions + (1 - user_share) * calls

    def is_within(self, limit: float, limit_of_instructions: float | None, user_share: float) -> bool:
        """Whether it adds no more than a share of the CPU time, and no more than a share of the instructions where that is limited, too."""
        if limit_of_instructions is not None and self.share_of_instructions > limit_of_instructions:
            return False
        return self.share_of_cpu(user_share) <= limit + NOISE
