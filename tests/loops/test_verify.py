"""Each rule of the verifier: one kernel that breaks it, and the message."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from onepass.core.dtypes import BOOL, F32, I32, U8
from onepass.core.errors import InternalError
from onepass.loops.build import add, binary, cast, const, fma, idx, loop, select, unary
from onepass.loops.ir import (
    Alloc,
    Binary,
    Buffer,
    Const,
    Expr,
    Fma,
    For,
    If,
    Kernel,
    Load,
    Prefetch,
    Select,
    Stmt,
    Store,
    Unary,
)
from onepass.loops.verify import verify

i, j, v = idx("i"), idx("j"), idx("v")
ZERO, ONE = const(0.0, F32), const(1.0, F32)
PARAMS = (Buffer("x", F32, (4, 8)), Buffer("n", I32, (4,)))
ACC = Buffer("acc", F32, (2, 8), "register")


def x(*indices: Expr) -> Load:
    return Load("x", indices, F32)


def kernel(*body: Stmt) -> Kernel:
    return Kernel("k", PARAMS, body)


def value(expr: Expr) -> Kernel:
    """A kernel that does nothing but store `expr`, of any dtype."""
    out = Buffer("out", expr.dtype, (1,))
    return Kernel("k", (*PARAMS, out), (Store("out", (const(0),), expr),))


def vector(*body: Stmt, stop: int = 8) -> For:
    return loop("v", stop, body, "vector")


def in_acc(*body: Stmt) -> Kernel:
    return kernel(Alloc(ACC, body))


def test_accepts_what_the_forms_write() -> None:
    update = Store("acc", (j, v), fma(x(i, v), ONE, Load("acc", (j, v), F32)))
    spill = Store("x", (i, v), Load("acc", (const(1), v), F32))
    tile = loop("j", 2, (vector(update),), "unroll")
    body = Alloc(ACC, (loop("k", i, (tile,)), If(binary("lt", i, const(3)), (vector(spill),))))
    verify(kernel(loop("i", 4, (body, Prefetch("x", (add(i, 9), const(0)))), "parallel")))
    verify(kernel(loop("i", 4, (Store("x", (i, i), ZERO),)), loop("i", 4, (Store("x", (i, i), ONE),))))


STORE = Store("x", (i, v), ZERO)
CASES: dict[str, tuple[Kernel, str]] = {
    "undeclared": (kernel(Store("y", (), ZERO)), "buffer 'y' is not declared here"),
    "out_of_scope": (
        kernel(Alloc(ACC, ()), Store("acc", (const(0), const(0)), ZERO)),
        "buffer 'acc' is not declared here",
    ),
    "twice": (kernel(Alloc(Buffer("x", F32, (), "cache"), ())), "buffer 'x' is declared twice"),
    "parameter_home": (Kernel("k", (ACC,), ()), "parameter 'acc' has home register"),
    "alloc_home": (kernel(Alloc(replace(ACC, home="memory"), ())), "alloc of 'acc' has home memory"),
    "rank": (kernel(Store("x", (const(0),), ZERO)), "'x' of rank 2 is accessed with 1 indices"),
    "index_dtype": (value(x(const(0), const(0, I32))), "index 0i32 of 'x' is not an int64"),
    "store_dtype": (kernel(Store("n", (const(0),), ONE)), "store of float32 1.0f32 to int32 buffer 'n'"),
    "load_dtype": (value(Load("n", (const(0),), F32)), "load as float32 of int32 buffer 'n'"),
    "load_fill": (
        value(Load("n", (const(9),), I32, fill=0)),
        "a load in a kernel has a fill in n[9; fill 0.0]",
    ),
    "unbound": (value(x(i, const(0))), "index 'i' is not bound by a loop"),
    "unbound_after_loop": (
        kernel(loop("i", 4, ()), Store("n", (i,), const(0, I32))),
        "index 'i' is not bound",
    ),
    "shadowed": (kernel(loop("i", 4, (loop("i", 4, ()),))), "loop 'i' shadows an outer loop"),
    "step": (kernel(replace(loop("i", 4, ()), step=0)), "loop 'i' has step 0"),
    "bound_dtype": (kernel(loop("i", const(4, I32), ())), "bound 4i32 of loop 'i' is not an int64"),
    "parallel": (kernel(loop("j", 4, (loop("i", 4, (), "parallel"),))), "parallel loop 'i' is not outermost"),
    "unroll": (
        kernel(loop("j", 4, (loop("i", j, (), "unroll"),))),
        "unroll loop 'i' has bounds that are not",
    ),
    "vector_start": (kernel(replace(vector(), start=Const(1))), "vector loop 'v' does not count from 0 by 1"),
    "vector_stop": (
        kernel(loop("i", 4, (loop("v", i, (STORE,), "vector"),))),
        "vector loop 'v' stops at i, not at a literal",
    ),
    "vector_body": (kernel(vector(loop("i", 4, (STORE,)))), "vector loop 'v' holds a For"),
    "vector_condition": (kernel(vector(If(binary("lt", v, const(1)), ()))), "vector loop 'v' holds a If"),
    "vector_store": (
        kernel(vector(Store("x", (const(0), const(0)), x(const(0), v)))),
        "all lanes of vector loop 'v' store to one element of 'x'",
    ),
    "register_serial": (
        in_acc(loop("i", 2, (Store("acc", (i, const(0)), ZERO),))),
        "index i of register buffer 'acc' is neither static nor the vector variable in last place",
    ),
    "register_lane_place": (in_acc(vector(Store("acc", (v, const(0)), ZERO), stop=2)), "index v of register"),
    "register_lane_expr": (
        in_acc(vector(Store("acc", (const(0), add(v, 1)), ZERO))),
        "index v + 1 of register",
    ),
    "register_lanes": (
        in_acc(vector(Store("acc", (const(0), v), ZERO), stop=9)),
        "counts 9 lanes, and there are 8",
    ),
    "register_lanes_from": (
        in_acc(vector(Store("acc", (const(0), add(v, 5)), ZERO), stop=4)),
        "index v + 5 of register buffer 'acc' counts 9 lanes, and there are 8",
    ),
    "prefetch_register": (in_acc(Prefetch("acc", (const(0), const(0)))), "prefetch of register buffer 'acc'"),
    "condition": (kernel(If(const(1), ())), "condition 1 is not a bool"),
    "const_range": (value(const(-1, U8)), "a uint8 cannot be -1"),
    "const_kind": (value(const(0.5, I32)), "a int32 cannot be 0.5"),
    "const_bool": (value(const(1, BOOL)), "a bool cannot be 1"),
    "const_float": (value(const(True, F32)), "a float32 cannot be True"),
    "unary_kind": (value(unary("exp", const(1, I32))), "exp takes no int32"),
    "binary_mixed": (value(binary("add", ONE, const(1, I32))), "the operands of add differ in dtype"),
    "binary_kind": (value(binary("shl", ONE, ONE)), "shl takes no float32"),
    "bool_kind": (value(binary("add", const(True, BOOL), const(True, BOOL))), "add takes no bool"),
    "result": (value(Binary("lt", ONE, ONE, F32)), "lt of float32 is said to be float32"),
    "predicate": (value(Unary("is_nan", ONE, F32)), "is_nan of float32 is said to be float32"),
    "fma": (value(Fma(ONE, ONE, const(1, I32), F32)), "operands and result of fma are not one float dtype"),
    "select_condition": (value(Select(ONE, ONE, ONE, F32)), "the condition of a select is not a bool"),
    "select_arms": (
        value(select(binary("lt", ONE, ONE), ONE, const(1, I32))),
        "the arms of a select differ in dtype in select(1.0f32 < 1.0f32, 1.0f32, 1i32)",
    ),
    "nested": (
        value(cast(x(const(0), cast(unary("not", ONE), const(0).dtype)), I32)),
        "not takes no float32",
    ),
}


@pytest.mark.parametrize(("broken", "message"), CASES.values(), ids=CASES)
def test_rule(broken: Kernel, message: str) -> None:
    with pytest.raises(InternalError, match=re.escape(message)) as failure:
        verify(broken)
    assert failure.value.step == "verify"
    assert failure.value.detail.startswith("kernel 'k': ")
