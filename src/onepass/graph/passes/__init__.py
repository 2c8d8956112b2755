"""Graph passes: `name(graph) -> graph`, the same object where nothing changed; no value changes by a bit."""

from onepass.graph.passes.constants import fold_constants
from onepass.graph.passes.dead import drop_dead_nodes
from onepass.graph.passes.duplicates import merge_common_subexpressions
from onepass.graph.passes.splits import split_to_slices
from onepass.graph.passes.views import simplify_views

__all__ = [
    "drop_dead_nodes",
    "fold_constants",
    "merge_common_subexpressions",
    "simplify_views",
    "split_to_slices",
]
