"""What arrives in `plan simulate` where no trace says it."""

from podplan.offered import read_offered
from podplan.options import SimulateFlags, flags_of
from tests.manifests import manifest


def test_requests_end_at_the_context_of_the_model() -> None:
    """Of lengths that vary widely some would be longer; a plan's own end there, too."""
    made = manifest(workload={"input_tokens": 1500, "output_tokens": 800, "input_cv2": 4.0, "output_cv2": 4.0})
    offered = read_offered(flags_of(SimulateFlags, {"concurrency": "8", "requests": "3k"}), made, 0)
    (part,) = offered.requests()
    assert (part.input_tokens + part.output_tokens).max() == made.model.spec.max_position
    assert part.output_tokens.min() >= 1 and (part.reused_tokens < part.input_tokens).all()
