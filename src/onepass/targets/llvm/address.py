"""Where elements lie: index expressions become a hoisted base pointer plus a constant offset.

The form of an access (constant, multiples of unrolled variables, multiples of run-time values) is
worked out once per loop nest. After that each unrolled instance costs a few integer additions in
Python, and one `getelementptr` with a literal offset. Base pointers are computed at the start of the loop
whose variable they depend on, each once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from onepass.core.dtypes import I64
from onepass.core.errors import InternalError
from onepass.loops.affine import Linear, Range, linear, range_of
from onepass.loops.build import add, mul
from onepass.loops.ir import Const, Expr, Index
from onepass.loops.walk import index_names, loads, substitute
from onepass.targets.llvm.arithmetic import Arithmetic
from onepass.targets.llvm.writer import Lines

Terms = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Scope:
    """A loop body (or the function): `prologue` is where it starts, `known` what was computed there."""

    prologue: Lines
    known: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class Form:
    """An index: `const` + unrolled variables + run-time terms + `lane` * vector variable.

    `terms` are sorted from outer to inner loop. `hard` are irreducible parts (a division) that hold
    an unrolled or vector variable; `low`, `high` bound the run-time terms.
    """

    const: int
    unrolled: Terms
    terms: Terms
    lane: int
    hard: tuple[tuple[Expr, int], ...]
    hard_names: tuple[str, ...]
    low: int
    high: int


class Addressing(Arithmetic, ABC):
    """Knows the loops around the current statement; turns indices into operands and pointers."""

    scopes: list[Scope]
    consts: dict[str, int]  # unrolled variables, and their value now
    dynamic: dict[str, tuple[str, int]]  # run-time variables: operand, and index of their scope
    ranges: dict[str, Range]
    vector: str | None  # the vector variable, and its extent
    extent: int

    def reset(self, prologue: Lines) -> None:
        """Starts a function whose entry block begins with `prologue`."""
        self.scopes = [Scope(prologue)]
        self.consts, self.dynamic, self.ranges = {}, {}, {}
        self.vector, self.extent = None, 0
        self._nest = 0
        self._nests: dict[object, int] = {}
        self._forms: dict[object, Form] = {}
        self._atoms: dict[Expr, str] = {}
        self._atom_exprs: dict[str, Expr] = {}
        self._alive: list[object] = []

    @abstractmethod
    def evaluate(self, expr: Expr, hoisted: bool) -> str:
        """The scalar operand of an expression without lanes; `hoisted`: outside statement and guard."""

    def enter(self, mode: str, name: str, bounds: Range) -> int:
        """Notes that a loop was entered; gives what `leave` needs."""
        before = self._nest
        key = (before, mode, name, bounds)
        self._nest = self._nests.setdefault(key, len(self._nests) + 1)
        self.ranges[name] = bounds
        return before

    def leave(self, before: int) -> None:
        """Notes that the loop was left."""
        self._nest = before

    def form(self, owner: object, kind: str, indices: tuple[Expr, ...], strides: tuple[int, ...]) -> Form:
        """The form of `sum(index * stride)`, cached for `owner` (an IR object) in this loop nest."""
        key = (id(owner), kind, self._nest)
        found = self._forms.get(key)
        if found is None:
            total: Expr = Const(0, I64)
            for position, stride in zip(indices, strides, strict=True):
                total = add(total, mul(position, stride))
            found = self._forms[key] = self._classify(linear(total, self.ranges))
            self._alive.append(owner)
        return found

    def _classify(self, total: Linear) -> Form:
        unrolled, terms, hard = [], [], []
        lane = low = high = 0
        names: set[str] = set()
        for atom, c in total.terms:
            if isinstance(atom, Index) and atom.name == self.vector:
                lane = c
            elif isinstance(atom, Index) and atom.name in self.consts:
                unrolled.append((atom.name, c))
            else:
                bound = {n for n in index_names(atom) if n in self.consts or n == self.vector}
                if bound:
                    hard.append((atom, c))
                    names |= bound
                    continue
                terms.append((atom.name if isinstance(atom, Index) else self._intern(atom), c))
                a, b = range_of(atom, self.ranges)
                low, high = low + min(a * c, b * c), high + max(a * c, b * c)
        terms.sort(key=lambda term: (self._depth(term[0]), term[0]))
        return Form(
            total.const, tuple(unrolled), tuple(terms), lane, tuple(hard), tuple(sorted(names)), low, high
        )

    def _intern(self, atom: Expr) -> str:
        name = self._atoms.get(atom)
        if name is None:
            # '!' marks one that reads memory: it is never hoisted or kept.
            name = f"{'!' if loads(atom) else '#'}{len(self._atoms)}"
            self._atoms[atom], self._atom_exprs[name] = name, atom
        return name

    def _depth(self, key: str) -> int:
        if key[0] == "!":
            return len(self.scopes)
        if key[0] == "#":
            return max((self._depth(n) for n in index_names(self._atom_exprs[key])), default=0)
        if key not in self.dynamic:
            raise InternalError("emit", f"loop variable '{key}' is not defined here")
        return self.dynamic[key][1]

    def resolve(self, form: Form) -> tuple[int, Form]:
        """The constant part now, and the form whose run-time terms and lane multiple hold now."""
        const, consts = form.const, self.consts
        for name, c in form.unrolled:
            const += c * consts[name]
        if not form.hard:
            return const, form
        values = {name: consts[name] for name in form.hard_names if name in consts}
        key = (id(form), tuple(values.items()), self._nest)
        found = self._forms.get(key)
        if found is None:
            literals: dict[str, Expr] = {name: Const(value, I64) for name, value in values.items()}
            total: Expr = Const(0, I64)
            for atom, c in form.hard:
                total = add(total, mul(substitute(atom, literals), c))
            for term, c in form.terms:
                total = add(total, mul(self._atom_exprs.get(term) or Index(term), c))
            found = self._forms[key] = self._classify(linear(total, self.ranges))
            found.lane += form.lane
        return const + found.const, found

    def varies(self, form: Form) -> bool:
        """Whether an irreducible part of a resolved form holds the vector variable."""
        return bool(form.hard)

    def pointer(self, root: str, form: Form, const: int) -> str:
        """`root` + form (in bytes, at lane 0)."""
        base = self._base(root, form.terms) if form.terms else root
        return self.op(f"getelementptr i8, ptr {base}, i64 {const}") if const else base

    def _base(self, root: str, terms: Terms) -> str:
        if not terms:
            return root
        key, c = terms[-1]
        return self._placed(
            key, (root, terms),
            lambda: f"getelementptr i8, ptr {self._base(root, terms[:-1])}, i64 {self._scaled(key, c)}",
        )  # fmt: skip

    def _placed(self, key: str, name: object, text: Callable[[], str]) -> str:
        """The result of an instruction called `name`, computed once where `key` is known."""
        depth = self._depth(key)
        if depth == len(self.scopes):
            return self.op(text())
        scope = self.scopes[depth]
        found = scope.known.get(name)
        if found is None:
            line = text()
            found = scope.known[name] = self.name()
            scope.prologue.append(f"  {found} = {line}")
        return found

    def _scaled(self, key: str, c: int) -> str:
        """The operand of `c * key`."""
        if c == 1:
            return self._value(key)
        return self._placed(key, (key, c), lambda: f"mul i64 {self._value(key)}, {c}")

    def _value(self, key: str) -> str:
        if key in self.dynamic:
            return self.dynamic[key][0]
        depth = self._depth(key)
        if depth == len(self.scopes):
            return self.evaluate(self._atom_exprs[key], hoisted=False)
        scope = self.scopes[depth]
        if key not in scope.known:
            saved = self.lines, self.known
            self.lines, self.known = scope.prologue, {}
            scope.known[key] = self.evaluate(self._atom_exprs[key], hoisted=True)
            self.lines, self.known = saved
        return scope.known[key]

    def index_operand(self, form: Form, const: int) -> str:
        """The scalar operand of a resolved form (at lane 0)."""
        if not form.terms:
            return str(const)
        value = self._sum(form.terms)
        return self.op(f"add i64 {value}, {const}") if const else value

    def _sum(self, terms: Terms) -> str:
        key, c = terms[-1]
        last = self._scaled(key, c)
        if len(terms) == 1:
            return last
        return self._placed(key, terms, lambda: f"add i64 {self._sum(terms[:-1])}, {last}")
