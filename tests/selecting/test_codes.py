"""The codes of `skip` records: scripts compare them, so they are kept."""

from __future__ import annotations

import re

from support import SCRIPT

CODES = {
    "not_named",
    "without_controller",
    "static_pod",
    "running_to_completion",
    "excluded",
    "gone",
    "being_deleted",
    "another_object",
    "not_included",
    "kind_not_selected",
    "wrong_method",
    "incomplete_rollout",
    "unhealthy",
    "nothing_to_replace",
    "below_partition",
    "changed_in_place",
    "pending_template",
    "another_sidecar",
    "another_method",
    "has_downtime",
    "degraded",
    "rejected",
    "unknown",
    "lost_sidecar",
    "losing_sidecar",
    "unfinished",
    "without_pods",
    "restarted_meanwhile",  # of a worker's alone
    "up_to_date",  # not listed
}

OTHERS = {"not_found", "no_sidecar", "not_selected", "up_to_date"}  # of rows of a plan file


def test_each_rule_has_its_code(tool):
    assert tool.RULES.keys() == CODES, "a new rule stands here, too; no code is renamed or removed"


def test_no_other_codes_are_used():
    assert set(re.findall(r'\bSkip\(.*, "([a-z_]+)"\)', SCRIPT.read_text())) == OTHERS
