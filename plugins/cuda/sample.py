"""Sampling in Triton: runtime.cuda_contract.SAMPLE, one program a row, the rules of sample.h.

Nothing is sorted. Weights are non-negative floats, whose bits are ordered as they are: the token
that a rule needs is found by bisection over bits, each step one pass over the row. Sums are in
double precision and in one order, so that a row's token depends on the row alone.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

_ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the weight of the likeliest
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def philox_uniform(seed, position):
    """Return a number in [0, 1) of a seed and a position, f64: Philox4x32-10, Salmon et al. 2011.

    The counter is the position and the key is the seed, as in plugins/cpu/sample.h.
    """
    low = tl.full((), 0xFFFFFFFF, tl.uint64)
    first = tl.full((), 0xD2511F53, tl.uint64)
    second = tl.full((), 0xCD9E8D57, tl.uint64)
    step0 = tl.full((), 0x9E3779B9, tl.uint64)
    step1 = tl.full((), 0xBB67AE85, tl.uint64)
    seed = seed.to(tl.uint64)
    k0 = seed & low
    k1 = seed >> 32
    c0 = position.to(tl.uint64) & low
    c1 = tl.full((), 0, tl.uint64)
    c2 = tl.full((), 0, tl.uint64)
    c3 = tl.full((), 0, tl.uint64)
    for _ in range(0, 10):
        a = first * c0
        b = second * c2
        c0 = ((b >> 32) ^ c1 ^ k0) & low
        c1 = b & low
        c2 = ((a >> 32) ^ c3 ^ k1) & low
        c3 = a & low
        k0 = (k0 + step0) & low
        k1 = (k1 + step1) & low
    return ((c0 << 21) ^ (c1 >> 11)).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def _row(x, at, vocab):
    """Load logits or weights; what is NaN is the lowest of all."""
    values = tl.load(x + at, mask=at < vocab, other=float("-inf"))
    return tl.where(values == values, values, float("-inf"))


@triton.jit
def _best(x, vocab, below, after, BLOCK: tl.constexpr):
    """Return the highest value and its lowest id, of what comes behind (below, after) in order."""
    lanes = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    ids = tl.full((BLOCK,), _NO_ID, tl.int32)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        values = _row(x, at, vocab)
        behind = (values < below) | ((values == below) & (at > after))
        better = behind & ((values > high) | ((values == high) & (at < ids))) & (at < vocab)
        high = tl.where(better, values, high)
        ids = tl.where(better, at, ids)
    most = tl.max(high, 0)
    return most, tl.min(tl.where(high == most, ids, _NO_ID), 0)


@triton.jit
def _mass(weights, vocab, bits, BLOCK: tl.constexpr):
    """Return the sum and the number of weights whose bits are `bits` or more."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        values = tl.load(weights + at, mask=at < vocab, other=0.0)
        taken = (values.to(tl.int32, bitcast=True) >= bits) & (values > 0)
        total += tl.where(taken, values, 0.0).to(tl.float64)
        count += taken.to(tl.int32)
    return tl.sum(total, 0), tl.sum(count, 0)


@triton.jit
def _threshold(weights, vocab, goal, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the highest bits with at least `goal` of mass (or weights, if COUNTED) at or above.

    1, the least positive float, if even all of them are not enough.
    """
    low = tl.full((), 1, tl.int32)
    high = tl.full((), 0x3F800000, tl.int32)
    while low < high:
        middle = low + (high - low + 1) // 2
        mass, count = _mass(weights, vocab, middle, BLOCK)
        if COUNTED:
            enough = count.to(tl.float64) >= goal
        else:
            enough = mass >= goal
        if enough:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _above(weights, vocab, bits, BLOCK: tl.constexpr):
    """Return the mass and number of weights above `bits`, the weight of `bits`, and how many."""
    mass, count = _mass(weights, vocab, bits + 1, BLOCK)
    _, upto = _mass(weights, vocab, bits, BLOCK)
    return mass, count, bits.to(tl.float32, bitcast=True).to(tl.float64), upto - count


@triton.jit
def _nth(weights, vocab, bits, index, BLOCK: tl.constexpr):
    """Return the id of the index-th weight, by id, that has exactly these bits."""
    lanes = tl.arange(0, BLOCK)
    passed = tl.full((), 0, tl.int32)
    found = tl.full((), -1, tl.int32)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        values = tl.load(weights + at, mask=at < vocab, other=0.0)
        same = ((values.to(tl.int32, bitcast=True) == bits) & (at < vocab)).to(tl.int32)
        number = passed + tl.cumsum(same, 0) - same
        here = tl.max(tl.where((same > 0) & (number == index), at, -1), 0)
        found = tl.maximum(found, here)
        passed += tl.sum(same, 0)
    return found


@triton.jit
def _draw_by_id(weights, vocab, target, BLOCK: tl.constexpr):
    """Return the first id whose sum of weights up to it is over `target`."""
    lanes = tl.arange(0, BLOCK)
    passed = tl.full((), 0.0, tl.float64)
    found = tl.full((), 0x7FFFFFFF, tl.int32)
    last = tl.full((), 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        values = tl.load(weights + at, mask=at < vocab, other=0.0)
        last = tl.maximum(last, tl.max(tl.where(values > 0, at, 0), 0))
        sums = passed + tl.cumsum(values.to(tl.float64), 0)
        over = (sums > target) & (values > 0)
        found = tl.minimum(found, tl.min(tl.where(over, at, _NO_ID), 0))
        passed += tl.sum(values.to(tl.float64), 0)
    return tl.where(found == _NO_ID, last, found)


@triton.jit
def _draw_filtered(weights, vocab, total, top_k, top_p, min_p, uniform, BLOCK: tl.constexpr):
    """Return the drawn token among those that the filters leave.

    They leave a prefix of the tokens from the likeliest on, ties by id: all above the bits of some
    weight, and of those that have it the first few.
    """
    every = tl.full((), 0x7FFFFFFF, tl.int32)
    bits = tl.full((), 1, tl.int32)
    ties = every
    kept = total
    if top_k > 0:
        bits = _threshold(weights, vocab, top_k.to(tl.float64), True, BLOCK)
        mass, count, weight, same = _above(weights, vocab, bits, BLOCK)
        ties = tl.minimum(top_k - count, same)
        kept = mass + ties.to(tl.float64) * weight
    if top_p < 1:
        goal = top_p.to(tl.float64) * kept
        edge = _threshold(weights, vocab, goal, False, BLOCK)
        if edge >= bits:
            mass, count, weight, same = _above(weights, vocab, edge, BLOCK)
            wanted = tl.ceil((goal - mass) / weight)
            few = tl.minimum(tl.maximum(wanted, 1.0), same.to(tl.float64)).to(tl.int32)
            ties = tl.where(edge == bits, tl.minimum(ties, few), few)
            bits = edge
    if min_p > 0:
        floor = tl.minimum(min_p, 1.0).to(tl.int32, bitcast=True)
        ties = tl.where(floor > bits, every, ties)
        bits = tl.maximum(bits, floor)
    mass, count, weight, same = _above(weights, vocab, bits, BLOCK)
    ties = tl.minimum(ties, same)
    target = uniform * (mass + ties.to(tl.float64) * weight)
    # The token where the sum passes the target has the highest weight with more mass at or above.
    if mass <= target:
        found = bits
        most = ties
    else:
        found = _passing(weights, vocab, target, BLOCK)
        mass, count, weight, most = _above(weights, vocab, found, BLOCK)
    index = tl.floor((target - mass) / weight)
    index = tl.maximum(tl.minimum(index, (most - 1).to(tl.float64)), 0.0).to(tl.int32)
    return _nth(weights, vocab, found, index, BLOCK)


@triton.jit
def _passing(weights, vocab, target, BLOCK: tl.constexpr):
    """Return the highest bits with more than `target` of mass at or above."""
    low = tl.full((), 1, tl.int32)
    high = tl.full((), 0x3F800000, tl.int32)
    while low < high:
        middle = low + (high - low + 1) // 2
        mass, _ = _mass(weights, vocab, middle, BLOCK)
        if mass > target:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def sample(
    logits,
    tokens,
    logprobs,
    top_ids,
    top_logprobs,
    scratch,
    temperature,
    top_p,
    min_p,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    top_k,
    positions,
    num_logprobs,
    history_starts,
    history,
    prompt_lengths,
    bias_starts,
    bias_ids,
    bias_values,
    seeds,
    masks,
    vocab,
    mask_words,
    top,
    BLOCK: tl.constexpr,
):
    """runtime.cuda_contract.SAMPLE; BLOCK is how many tokens a program looks at together."""
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    logits += wide * vocab
    x = scratch + wide * 2 * vocab
    counts = (x + vocab).to(tl.pointer_type(tl.int32), bitcast=True)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        tl.store(counts + at, 0, mask=at < vocab)
    tl.debug_barrier()

    # A token's count: 1 if it is in the prompt, and 2 for each time in the answer.
    begin = tl.load(history_starts + row)
    length = tl.load(history_starts + row + 1) - begin
    prompt = tl.load(prompt_lengths + row)
    for start in range(0, length, BLOCK):
        at = start + lanes
        ids = tl.load(history + begin + at, mask=at < length, other=0)
        tl.atomic_or(counts + ids, 1, mask=at < tl.minimum(prompt, length))
        tl.atomic_add(counts + ids, 2, mask=(at >= prompt) & (at < length))
    tl.debug_barrier()

    repetition = tl.load(repetition_penalty + row)
    presence = tl.load(presence_penalty + row)
    frequency = tl.load(frequency_penalty + row)
    for start in range(0, vocab, BLOCK):
        at = start + lanes
        inside = at < vocab
        values = tl.load(logits + at, mask=inside, other=0.0)
        count = tl.load(counts + at, mask=inside, other=0)
        divisor = tl.zeros((BLOCK,), tl.float32) + repetition
        penalized = tl.where(values > 0, tl.div_rn(values, divisor), values * repetition)
        values = tl.where(count > 0, penalized, values)
        times = count >> 1
        values = tl.where(times > 0, values - (presence + frequency * times), values)
        tl.store(x + at, values, mask=inside)
    tl.debug_barrier()
    for index in range(tl.load(bias_starts + row), tl.load(bias_starts + row + 1)):
        tl.atomic_add(x + tl.load(bias_ids + index), tl.load(bias_values + index))
    tl.debug_barrier()
    if mask_words > 0:
        words = masks + wide * mask_words
        for start in range(0, vocab, BLOCK):
            at = start + lanes
            word = tl.load(words + at // 32, mask=at < vocab, other=0).to(tl.int32, bitcast=True)
            banned = ((word >> (at % 32)) & 1) == 0
            tl.store(x + at, float("-inf"), mask=(at < vocab) & banned)
        tl.debug_barrier()

    high, token = _best(x, vocab, float("inf"), -1, BLOCK)
    heat = tl.load(temperature + row)
    if (high == float("-inf")) | (high == float("inf")):
        token = tl.full((), -1, tl.int32)
    elif heat > 0:
        slope = 1.4426950408889634 / tl.maximum(heat, 1e-37)
        sums = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, vocab, BLOCK):
            at = start + lanes
            weight = tl.exp2((_row(x, at, vocab) - high) * slope)
            tl.store(x + at, weight, mask=at < vocab)
            sums += weight.to(tl.float64)
        tl.debug_barrier()
        total = tl.sum(sums, 0)
        uniform = philox_uniform(tl.load(seeds + row), tl.load(positions + row))
        k = tl.load(top_k + row)
        p = tl.load(top_p + row)
        least = tl.load(min_p + row)
        if (k <= 0) & (p >= 1) & (least <= 0):
            token = _draw_by_id(x, vocab, uniform * total, BLOCK)
        else:
            token = _draw_filtered(x, vocab, total, k, p, least, uniform, BLOCK)
    tl.store(tokens + row, token)

    wanted = tl.load(num_logprobs + row)
    if (wanted < 0) | (token < 0):
        wanted = tl.full((), 0, tl.int32)
        tl.store(logprobs + row, float("nan"))
        shift = tl.full((), 0.0, tl.float64)
    else:
        most, _ = _best(logits, vocab, float("inf"), -1, BLOCK)
        sums = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, vocab, BLOCK):
            at = start + lanes
            sums += tl.exp2((_row(logits, at, vocab) - most) * 1.4426950408889634).to(tl.float64)
        shift = tl.log(tl.sum(sums, 0)) + most.to(tl.float64)
        own = tl.load(logits + token).to(tl.float64) - shift
        tl.store(logprobs + row, own.to(tl.float32))
    value = tl.full((), float("inf"), tl.float32)
    place = tl.full((), -1, tl.int32)
    for index in range(0, top):
        if index < tl.minimum(wanted, vocab):
            value, place = _best(logits, vocab, value, place, BLOCK)
            tl.store(top_ids + wide * top + index, place)
            tl.store(
                top_logprobs + wide * top + index, (value.to(tl.float64) - shift).to(tl.float32)
            )
        else:
            tl.store(top_ids + wide * top + index, -1)
            tl.store(top_logprobs + wide * top + index, float("nan"))
