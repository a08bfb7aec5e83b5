"""The report of `traces verify`: findings of stable kinds, and how much was checked."""

from dataclasses import dataclass, field
from typing import Literal

FindingKind = Literal[
    "reference",  # a row refers to a missing row, or to one of another session or rollout
    "segment_blob",  # a segment's bytes do not have the stored length
    "segment_hash",  # a segment's ids do not have the stored hash
    "segment_tree",  # a segment has no path to a root
    "segment_orphan",  # no call owns a segment: a call was dropped
    "ordinal_gap",  # ordinals of a session are not 0..n-1: a call was dropped
    "ordinal_order",  # a call continues one that came after it
    "seal_count",  # the number of calls in a sealed session has changed since it was sealed
    "prompt_length",  # a rebuilt prompt is longer or shorter than the one on the wire
    "prompt_hash",  # a rebuilt prompt is not the one on the wire
    "completion_missing",  # a finished call has no tokens
    "completion_length",  # a completion is longer or shorter than the sampled one
    "completion_hash",  # ids, logprobs or spans are not the sampled ones
    "completion_parent",  # a completion does not follow its call's prompt, or two calls claim it
    "logprob",  # a logprob is positive or not finite
    "span_coverage",  # version spans do not tile the completion
    "span_version",  # a token names a version that was never published
    "routed_experts",  # recorded experts do not fit the tokens of their call, or differ in shape
    "usage",  # the engine's token counts differ from the record
    "parent_policy",  # a call continues tokens that another policy sampled
    "parent_prefix",  # a call does not continue the tokens of its parent
    "exclusion_range",  # an excluded range lies outside its call, or overlaps another
    "advantage",  # advantages of a trained rollout do not cover exactly the tokens that were trained
    "account",  # trained + excluded tokens are not the sampled ones
    "trained_twice",  # a rollout was trained more often than the run allows on the surviving version chain
    # a group with too few graded rollouts was not given up, or one with enough was
    "min_group",
    "trained_purpose",  # a rollout with another purpose than training was trained
    "staleness",  # a trained token is older than allowed, or newer than the version trained
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction in the store."""

    kind: FindingKind
    where: str
    """The row it is about, e.g. `call 0006...`."""
    message: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was checked."""

    sessions: int = 0
    calls: int = 0
    unfinished: int = 0
    """Calls that never finished. They are not contradictions, but their rollouts are incomplete."""
    segments: int = 0
    tokens: int = 0
    """Number of ids in all segments."""
    routed_tokens: int = 0
    """Tokens whose routed experts were recorded."""
    rollouts: int = 0
    """Number of training rollouts whose account must be closed."""
    trained_tokens: int = 0
    excluded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of verifying a store."""

    findings: tuple[Finding, ...]
    checked: Coverage

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[FindingKind]:
        """The kinds of all findings."""
        return frozenset(finding.kind for finding in self.findings)


@dataclass(slots=True)
class Tally:
    """Collects findings and counts while a verification runs."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def find(self, kind: FindingKind, where: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, where, message))

    def count(self, name: str, number: int = 1) -> None:
        """Add to a field of `Coverage`."""
        self.counts[name] = self.counts.get(name, 0) + number

    def report(self) -> VerificationReport:
        """Return the report, with findings in the order they were made."""
        return VerificationReport(tuple(self.findings), Coverage(**self.counts))
