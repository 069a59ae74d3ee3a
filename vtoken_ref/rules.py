"""The rules of vToken: permanent id, error code, and the invariant each one serves.

The normative sentence of every rule stands in spec/SPEC.md under the same id; a test keeps the two
lists equal. Code enforces a rule by raising ``VTokenError(Rule.NAME, detail)``.
"""

from enum import Enum


class Rule(Enum):
    """One rule: ``Rule.NAME.id`` (permanent), ``.code`` (for tests and tools), ``.invariant``."""

    # Trace format: what a reader accepts at all (docs/trace-format.md).
    TRACE_NOT_JSON = ("VT-TRACE-001", "trace-not-json", "trace")
    TRACE_FORMAT = ("VT-TRACE-002", "trace-format", "trace")
    TRACE_FIELD = ("VT-TRACE-003", "trace-field", "trace")
    TRACE_TRUNCATED = ("VT-TRACE-004", "trace-truncated", "trace")
    TRACE_COUNTS = ("VT-TRACE-005", "trace-counts", "trace")
    TRACE_AFTER_END = ("VT-TRACE-006", "trace-after-end", "trace")

    # Token table: where each token is (paper 3.2).
    UNKNOWN_REQUEST = ("VT-MAP-001", "unknown-request", "I2")
    UNKNOWN_TOKEN = ("VT-MAP-002", "unknown-token", "I2")
    LENGTH_SHRANK = ("VT-MAP-003", "length-shrank", "I1")
    BLOCK_LIST_SHORT = ("VT-MAP-004", "block-list-short", "I2")
    BLOCK_LIST_CHANGED = ("VT-MAP-005", "block-list-changed", "I2")
    EVICTED_TWICE = ("VT-MAP-006", "evicted-twice", "I1")
    DEAD_MOVE = ("VT-MAP-007", "dead-move", "I1")
    STALE_SOURCE = ("VT-MAP-008", "stale-source", "I1")
    SLOT_OCCUPIED = ("VT-MAP-009", "slot-occupied", "I2")
    SLOT_USED_TWICE = ("VT-MAP-010", "slot-used-twice", "I2")
    SLOT_OUTSIDE = ("VT-MAP-011", "slot-outside", "I2")
    BLOCK_STILL_LIVE = ("VT-MAP-012", "block-still-live", "I1")
    TOKEN_IDS = ("VT-MAP-013", "token-ids", "I1")
    SLOT_MISMATCH = ("VT-MAP-014", "slot-mismatch", "I2")
    SHARED_WRITE = ("VT-MAP-015", "shared-write", "I1")
    RECYCLE = ("VT-MAP-016", "recycle", "I2")

    # Requests and epochs.
    REQUEST_EXISTS = ("VT-REQ-001", "request-exists", "I8")
    STALE_EPOCH = ("VT-REQ-002", "stale-epoch", "I8")
    CAPACITY = ("VT-REQ-003", "capacity", "I8")
    LENGTH_MISMATCH = ("VT-REQ-004", "length-mismatch", "I8")
    BUDGET_EXCEEDED = ("VT-REQ-005", "budget-exceeded", "I8")
    PROTECTED_TOKEN = ("VT-REQ-006", "protected-token", "I8")
    REQUEST_LEFT = ("VT-REQ-007", "request-left", "I8")
    TOKEN_DIFFERS = ("VT-REQ-008", "token-differs", "I8")
    TAIL_CAPACITY = ("VT-REQ-009", "tail-capacity", "I8")

    # Eviction policies (paper 4).
    POLICY_VICTIMS = ("VT-POLICY-001", "policy-victims", "policy")
    POLICY_COUNT = ("VT-POLICY-002", "policy-count", "policy")
    POLICY_RAISED = ("VT-POLICY-003", "policy-raised", "policy")
    POLICY_CHANGES = ("VT-POLICY-004", "policy-changes", "policy")

    # Block pool (paper 3.3.2).
    UNKNOWN_BLOCK = ("VT-POOL-001", "unknown-block", "I6")
    NOT_FREE = ("VT-POOL-002", "not-free", "I6")
    NOT_HELD = ("VT-POOL-003", "not-held", "I6")
    NOT_FENCED = ("VT-POOL-004", "not-fenced", "I6")
    FENCE = ("VT-POOL-005", "fence", "I5")
    HEADROOM = ("VT-POOL-006", "headroom", "I6")
    LEAK = ("VT-POOL-007", "leak", "I6")

    # Prefix cache (paper 6).
    CACHE_PREFIX = ("VT-CACHE-001", "cache-prefix", "I1")
    CACHE_BUSY = ("VT-CACHE-002", "cache-busy", "I1")
    NOT_CACHED = ("VT-CACHE-003", "not-cached", "I6")
    SHARE_PREFIX = ("VT-CACHE-004", "share-prefix", "I1")

    # Admission and reclamation (paper 3.3.1, 3.3.2).
    BACKPRESSURE = ("VT-ADM-001", "backpressure", "I9")
    DEFER = ("VT-ADM-002", "defer", "I9")
    LEASE_ORDER = ("VT-ADM-003", "lease-order", "I9")
    HEADROOM_RESERVED = ("VT-ADM-004", "headroom-reserved", "I9")
    NOT_ELIGIBLE = ("VT-RECLAIM-001", "not-eligible", "I9")
    RATE_LIMIT = ("VT-RECLAIM-002", "rate-limit", "I9")

    # Plans, copies, commits (paper 3.3.3, 3.5).
    PLAN_OVERLAP = ("VT-PLAN-001", "plan-overlap", "I4")
    PLAN_SOURCES = ("VT-PLAN-002", "plan-sources", "I4")
    PLAN_SHARED = ("VT-PLAN-003", "plan-shared", "I4")
    PLAN_NO_GAIN = ("VT-PLAN-004", "plan-no-gain", "I4")
    PLAN_DESTINATIONS = ("VT-PLAN-005", "plan-destinations", "I4")
    PLAN_TOKEN_LOST = ("VT-PLAN-006", "plan-token-lost", "I1")
    PLAN_ORDER = ("VT-PLAN-007", "plan-order", "I4")
    PLAN_PACKED = ("VT-PLAN-008", "plan-packed", "I7")
    UNKNOWN_PLAN = ("VT-PLAN-009", "unknown-plan", "I4")
    PLAN_STRATEGY = ("VT-PLAN-010", "plan-strategy", "I4")
    CANCEL_OVERWRITTEN = ("VT-PLAN-011", "cancel-overwritten", "I1")
    COPY_NOT_PLANNED = ("VT-COPY-001", "copy-not-planned", "I3")
    COMMIT_BEFORE_COPY = ("VT-COPY-002", "commit-before-copy", "I3")
    COMMIT_DIFFERS = ("VT-COPY-003", "commit-differs", "I4")
    COPY_BYTES = ("VT-COPY-004", "copy-bytes", "trace")
    COPY_ORDER = ("VT-COPY-005", "copy-order", "I1")
    COPY_OVER_READ = ("VT-COPY-006", "copy-over-read", "I5")

    # KV content (paper 5.8).
    KV_CHANGED = ("VT-KV-001", "kv-changed", "I1")
    KV_BEFORE = ("VT-KV-002", "kv-before", "I1")
    KV_VISIBLE = ("VT-KV-003", "kv-visible", "I1")

    # Forwards: what attention reads and writes (paper 3.4).
    STEP_ORDER = ("VT-FWD-001", "step-order", "I8")
    SYNC_OUTSIDE_FORWARD = ("VT-FWD-002", "sync-outside-forward", "I5")
    FORWARD_DURING_PLAN = ("VT-FWD-003", "forward-during-plan", "I3")
    QUERY_NOT_LAST = ("VT-FWD-004", "query-not-last", "I7")
    OUTPUT_UNKNOWN = ("VT-FWD-005", "output-unknown", "I8")
    LAYOUT_DURING_FORWARD = ("VT-FWD-006", "layout-during-forward", "I5")

    # Messages between scheduler and worker (paper 3.4).
    MESSAGE_ORDER = ("VT-MSG-001", "message-order", "I8")
    REPORT_DIFFERS = ("VT-MSG-002", "report-differs", "I8")
    REPORT_BASE = ("VT-MSG-003", "report-base", "I8")
    WORKER_IDLE = ("VT-MSG-004", "worker-idle", "I8")
    PLAN_UNFINISHED = ("VT-MSG-005", "plan-unfinished", "I5")

    def __init__(self, rule_id: str, code: str, invariant: str) -> None:
        self.id = rule_id
        self.code = code
        self.invariant = invariant


class VTokenError(Exception):
    """An operation broke a rule; the state is as it was before the operation.

    Attributes:
        code: short stable word, e.g. ``stale-source``.
        rule: permanent rule id, e.g. ``VT-MAP-008``.
        detail: one sentence with the values that broke the rule.

    """

    def __init__(self, broken: Rule, detail: str) -> None:
        super().__init__(f"{broken.id} {broken.code}: {detail}")
        self.code = broken.code
        self.rule = broken.id
        self.invariant = broken.invariant
        self.detail = detail
