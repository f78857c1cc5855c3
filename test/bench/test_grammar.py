"""``bench grammar``: what it counts; its times are not looked at."""

from __future__ import annotations

import json
from pathlib import Path

from edge_cloud_spec.cli import main


def test_random_weights_answer_with_actions_in_the_grammar_alone(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    main(["bench", "grammar", "--prompts", "2", "--seed", "8", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    for checkpoint in ("random", "embedded"):
        own = [row for row in rows if row["checkpoint"] == checkpoint]
        assert len(own) == 4  # both orders, without and with it
        for row in own:
            in_grammar = row["grammar"] == "action"
            known = checkpoint == "embedded" or in_grammar
            assert row["actions"] == (row["answers"] if known else 0)
            if in_grammar:
                assert 0 < row["forced"] < 1
                assert row["same_actions"] == (2 if checkpoint == "embedded" else 0)
