"""The forms of a GPU: which a region takes, its tiles in order of preference, and its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.cost.gpu import Gpu
from onepass.forms.body import Body, join
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, Form, Shaped, check_space, form_of
from onepass.graph.ir import Node
from onepass.loops.tile import Tile
from onepass.loops.walk import loads
from onepass.tiles.builder import TileBuilt
from onepass.tiles.chain import build_chain, match_link
from onepass.tiles.choose import (
    Candidate,
    chain_candidates,
    nest_estimate,
    pointwise_tiles,
    product_candidates,
    row_candidates,
)
from onepass.tiles.nest import build_nest
from onepass.tiles.product import build_product, match_product
from onepass.tiles.rows import build_rows


@dataclass(frozen=True, slots=True)
class GpuShaper:
    """The forms of `gpu`: see `Shaper`."""

    gpu: Gpu

    def shape(self, context: Context, nodes: Sequence[Node], outputs: Sequence[str]) -> Shaped:
        """The form and estimate of a group, cut as the cost model would."""
        body = join(context.graph, nodes, outputs, context.rewrites)
        form = _form(body)
        check_space(body, form)
        best, held = self.candidates(context, body, form)[0], dict[str, str]()
        if form == "chain":
            held = dict.fromkeys(_between(context, body), f"on its SM, in tiles of {best.tile}")
        return Shaped(
            tuple(nodes), tuple(outputs), body, form, best.estimate, tile=best.tile, in_cache=held
        )

    def chain(self, context: Context, parts: Sequence[Shaped]) -> Shaped:
        """Two products, the second of what the first makes, as one kernel."""
        shaped = self.shape(context, [node for part in parts for node in part.nodes], parts[-1].outputs)
        if shaped.form != "chain":
            raise FormMismatch("")
        return shaped

    def candidates(self, context: Context, body: Body, form: Form) -> list[Candidate]:
        """The ways to cut a region, the one predicted to be fastest first."""
        graph, layouts = context.graph, context.layouts
        if form == "row":
            return row_candidates(body, graph, layouts, self.gpu)
        if form == "chain":
            link, online = match_link(body, graph, layouts), "online_softmax" in context.rewrites
            return chain_candidates(body, graph, layouts, self.gpu, link, online)
        product = match_product(body.reductions()[0]) if form == "contraction" else None
        if product is not None:
            return product_candidates(body, graph, layouts, self.gpu, product)
        guess = nest_estimate(body, graph, layouts, self.gpu)
        return [Candidate(tile, guess) for tile in pointwise_tiles(body.output.type.size, self.gpu)]

    def build(self, context: Context, shaped: Shaped, tile: Tile) -> TileBuilt:
        """The kernel of a region cut by `tile`; raises `FormMismatch` where it cannot be cut so."""
        names = ", ".join(dict.fromkeys(node.user_name for node in shaped.nodes))
        title = f"{names}\n\nForm {shaped.form}; tile {tile}."
        arguments = (shaped.body, context.graph, context.layouts, tile, title)
        if shaped.form == "row":
            return build_rows(*arguments)
        if shaped.form == "chain":
            return build_chain(*arguments)
        if shaped.form == "contraction" and match_product(shaped.body.reductions()[0]) is not None:
            return build_product(*arguments)
        return build_nest(*arguments)


def _form(body: Body) -> Form:
    """As on the CPU, but products of 16-bit operands, summed in float32, count as well."""
    reductions = body.reductions()
    products = [root for root in reductions if match_product(root) is not None]
    if len(products) == 2:
        return "chain"
    if products and len(reductions) > 1:
        raise FormMismatch("a product and another reduction")
    return "contraction" if products else form_of(body)


def _between(context: Context, body: Body) -> list[str]:
    """The values that a chain's reductions read of what its first product makes."""
    first, *later = body.reductions()
    made = {first.name}
    for stage in body.stages:
        if any(load.buffer in made for load in loads(stage.body)):
            made.add(stage.name)
    read = dict.fromkeys(load.buffer for stage in later for load in loads(stage.body))
    return [name for name in read if name in made and name in context.graph.types]
