"""Groups of nodes while the planner works: which node is where, and what a merge would look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from onepass.forms.regions import Context, Shaped, shape_region
from onepass.fuse import rules
from onepass.fuse.places import is_in_place
from onepass.graph.ir import Node
from onepass.graph.layout import PLAIN
from onepass.loops.walk import index_names, loads


@dataclass(slots=True)
class Group:
    """Nodes by position, with their form and predicted time; `shaped` is None for a view."""

    members: frozenset[int]
    shaped: Shaped | None

    @property
    def seconds(self) -> float:
        return self.shaped.estimate.seconds if self.shaped else 0.0


class Groups:
    """A partition of the graph's nodes."""

    def __init__(self, context: Context) -> None:
        self.context, self.graph = context, context.graph
        graph = self.graph
        self.producer_of = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.consumers_of: dict[str, list[int]] = {name: [] for name in graph.types}
        for at, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.consumers_of[name].append(at)
        self.successors = {
            at: sorted({c for name in node.outputs if name for c in self.consumers_of[name]})
            for at, node in enumerate(graph.nodes)
        }
        self.group_of: dict[int, Group] = {}
        for at, node in enumerate(graph.nodes):
            members = frozenset({at})
            shaped = None if self.is_view(node) else shape_region(context, [node], self.leaving(members))
            self.group_of[at] = Group(members, shaped)

    def is_view(self, node: Node) -> bool:
        """Whether the node moves nothing: in place, or both sides plain and neither the user's own array."""
        graph, layouts = self.graph, self.context.layouts
        if is_in_place(graph, layouts, node):
            return True
        if not node.opdef.view or node.inputs[0] in graph.constants or node.outputs[0] in graph.outputs:
            return False
        if node.inputs[0] in graph.inputs:
            return False
        source, output = (layouts.get(name, PLAIN) for name in (node.inputs[0], node.outputs[0]))
        dense = source.is_dense(graph.types[node.inputs[0]].shape) and output.place is None
        return dense and source.is_plain and output.is_plain

    def view_reason(self, producer: Group, consumer: Group) -> str:
        """What runs at neither or only one end of an edge, so that there is nothing to fuse."""
        view = consumer if consumer.shaped is None else producer
        op = self.graph.nodes[max(view.members)].op
        return f"in_place_{op}" if f"in_place_{op}" in rules.REASONS else "view"

    def leaving(self, members: frozenset[int]) -> tuple[str, ...]:
        """Values that `members` make and others, or the user, read; an unread node's first output too."""
        graph = self.graph
        found = [
            name
            for at in sorted(members)
            for name in graph.nodes[at].outputs
            if name and (name in graph.outputs or any(c not in members for c in self.consumers_of[name]))
        ]
        return tuple(found) or graph.nodes[max(members)].outputs[:1]

    def nodes(self, members: frozenset[int]) -> list[Node]:
        """The nodes in topological order."""
        return [self.graph.nodes[at] for at in sorted(members)]

    def merged(self, producer: Group, consumer: Group) -> Shaped:
        """The region of both; raises `FormMismatch` where none fits."""
        members = producer.members | consumer.members
        return shape_region(self.context, self.nodes(members), self.leaving(members))

    def refusal(self, producer: Group, consumer: Group, value: str, copied: bool = False) -> str:
        """The rule that forbids the two to become one because of `value`, '' where none does.

        `copied`: the consumer gets the producer for itself alone.
        """
        graph = self.graph
        if producer.shaped is None or consumer.shaped is None:
            return self.view_reason(producer, consumer)
        if not copied and rules.has_cycle(producer.members, consumer.members, self.successors):
            return "no_cycle"
        readers = [at for at in self.consumers_of[value] if at in consumer.members]
        in_place = all(rules.same_space(graph, graph.nodes[at], value) for at in readers)
        leaves = not copied and value in self.leaving(producer.members | consumer.members)
        if consumer.shaped.form in ("contraction", "winograd", "window"):
            return self._prologue_refusal(producer, consumer, value, leaves)
        if producer.shaped.form != "pointwise":
            if consumer.shaped.form == "row":
                return "" if producer.shaped.form == "row" else "one_reduction"
            return "" if in_place else "same_space"
        if leaves and not (in_place and consumer.shaped.form == "pointwise"):
            return "several_consumers"
        moves = all(rules.only_moves(graph, node) for node in producer.shaped.nodes)
        larger = any(graph.types[graph.nodes[at].outputs[0]].size > graph.types[value].size for at in readers)
        if not in_place and not moves and larger and consumer.shaped.form == "pointwise":
            return "prologue_would_repeat"
        return ""

    def _prologue_refusal(self, producer: Group, consumer: Group, value: str, leaves: bool) -> str:
        assert producer.shaped is not None and consumer.shaped is not None
        if producer.shaped.form != "pointwise":
            return "one_reduction"
        joins_root = any(
            any(stage.reduce_axes for stage, _ in rules.reads(self.graph, self.graph.nodes[at], value))
            for at in self.consumers_of[value]
            if at in consumer.members
        )
        if not joins_root:
            return "several_consumers" if leaves else ""
        if not all(rules.only_moves(self.graph, node) for node in producer.shaped.nodes):
            return "prologue_would_repeat"
        if self.context.layouts.get(value, PLAIN).is_padded:
            return "border_of_zeros"
        if leaves:
            return "several_consumers"
        in_place = self.context.shaper is not None or self._keeps_lanes(producer)  # a GPU has no lanes
        return "" if in_place else "prologue_would_repeat"

    def _keeps_lanes(self, producer: Group) -> bool:
        """Whether the last dimension stays last, so that what was contiguous is read contiguously."""
        assert producer.shaped is not None
        for node in producer.shaped.nodes:
            stage = self.graph.lowering(node).stages[0]
            read = next(iter(loads(stage.body)), None)
            if not stage.axes or read is None or not read.indices:
                return False
            if stage.axes[-1].name not in index_names(read.indices[-1]):
                return False
        return True

    def merge(self, parts: Iterable[Group], shaped: Shaped) -> None:
        """Makes the groups one."""
        group = Group(frozenset().union(*(part.members for part in parts)), shaped)
        for at in group.members:
            self.group_of[at] = group

    def edges_between(self, producer: Group, consumer: Group) -> list[tuple[str, int]]:
        """The values that pass from one group to the other, each with the position of its reader."""
        made = [name for node in self.nodes(producer.members) for name in node.outputs if name]
        return [(name, at) for name in made for at in self.consumers_of[name] if at in consumer.members]

    def all(self) -> list[Group]:
        """Each group once, in the order of their first nodes."""
        return list({id(group): group for group in self.group_of.values()}.values())

    def in_order(self) -> list[Group]:
        """The groups, each after those that it reads; of those ready, the one whose last node stands first.

        Kahn's algorithm.
        """
        groups = {id(group): group for group in self.all()}
        after: dict[int, set[int]] = {key: set() for key in groups}
        for at, followers in self.successors.items():
            after[id(self.group_of[at])] |= {id(self.group_of[follower]) for follower in followers}
        waiting = Counter(b for a, followers in after.items() for b in followers if a != b)
        ready = [key for key in groups if not waiting[key]]
        order: list[Group] = []
        while ready:
            ready.sort(key=lambda key: -max(groups[key].members))
            key = ready.pop()
            order.append(groups[key])
            for follower in after[key] - {key}:
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        return order
