"""The shard's source of masks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grammar.device import compiled
from tgi_core.backend import MaskRow
from tgi_core.grammar import Grammar, GrammarKind, InvalidGrammar
from tgi_core.grammar.compiler import GrammarCompiler
from tgi_core.model_files import DEMO
from tgi_core.server.masks import Constraint, GrammarMasks
from tgi_core.tokenizer import Tokenizer

DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{2}")
GROWING = Grammar(GrammarKind.REGEX, "(a|b)*a(a|b){200}")
VOCAB = 2048


@pytest.fixture(scope="module")
def compiler(demo_tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    """For the demo model's tokenizer."""
    made = GrammarCompiler.for_model(DEMO, demo_tokenizer.eos_ids)
    assert made is not None
    yield made
    made.close()


@pytest.fixture
def masks(compiler: GrammarCompiler) -> GrammarMasks:
    """Attached to a model with as many tokens as the tokenizer."""
    made = GrammarMasks(compiler)
    made.attach(VOCAB)
    return made


def allowed(mask: bytes) -> set[int]:
    """Ids of a mask's bits."""
    bits = int.from_bytes(mask, "little")
    return {id for id in range(len(mask) * 8) if bits >> id & 1}


def ids(tokenizer: Tokenizer, *texts: str) -> set[int]:
    """Ids of single tokens."""
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert all(len(item) == 1 for item in encoded)
    return {item[0] for item in encoded}


def test_rows_are_in_order_and_apart(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """Each row gets its own mask at its own place, in the order of the question."""
    masks.begin(1, DIGITS, ())
    masks.begin(2, Grammar(GrammarKind.REGEX, "x"), ())
    packed = masks.fill((MaskRow(2), MaskRow(1)))
    assert allowed(packed[: VOCAB // 8]) == ids(demo_tokenizer, "x")
    assert allowed(packed[VOCAB // 8 :]) >= ids(demo_tokenizer, *"0123456789")
    assert ids(demo_tokenizer, "x").isdisjoint(allowed(packed[VOCAB // 8 :]))


def test_a_token_is_told_with_the_next_question(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """The mask of a step holds for the token of the step before, though nobody has read that step's rows; asking twice changes nothing."""
    (one,) = ids(demo_tokenizer, "1")
    masks.begin(1, DIGITS, ())
    masks.fill((MaskRow(1),))
    second = masks.fill((MaskRow(1, (one,)),))
    assert allowed(second) == ids(demo_tokenizer, *"0123456789") and masks.fill((MaskRow(1),)) == second
    for _ in range(3):  # the end, and what a backend that runs ahead asks behind it
        assert allowed(masks.fill((MaskRow(1, (one,)),))) == demo_tokenizer.eos_ids
        one = min(demo_tokenizer.eos_ids)


def test_a_continued_request_is_where_it_was(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """The tokens that a request brings along beyond its prompt are behind it in its grammar."""
    made = demo_tokenizer.encode("1", add_special_tokens=False).ids
    masks.begin(1, DIGITS, ())
    masks.begin(2, DIGITS, made)
    assert masks.fill((MaskRow(1, made),)) == masks.fill((MaskRow(2),))


def test_a_late_row_may_only_end(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """A row that has been dropped gets a mask for the step that it still is in, whatever it made; nothing is remembered of it."""
    masks.begin(1, DIGITS, ())
    masks.end([1, 99])
    assert allowed(masks.fill((MaskRow(1, (3, 4)), MaskRow(99)))[: VOCAB // 8]) == demo_tokenizer.eos_ids
    assert masks.failure(1) is None and not masks.live


def test_tokens_that_break_the_grammar_fail_their_row(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """Zeros for that row and a reason, once and for ever; its mate's mask is untouched. Never the mask that ends an answer."""
    (wrong,) = ids(demo_tokenizer, "x")
    masks.begin(1, DIGITS, ())
    masks.begin(2, DIGITS, ())
    before = masks.fill((MaskRow(1), MaskRow(2)))
    for tokens in ((wrong,), ()):
        after = masks.fill((MaskRow(1, tokens), MaskRow(2)))
        assert after[: VOCAB // 8] == bytes(VOCAB // 8) and after[VOCAB // 8 :] == before[VOCAB // 8 :]
    assert "grammar is not valid" in (masks.failure(1) or "") and masks.failure(2) is None


def test_a_bug_in_a_mask_is_its_rows_own(masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a constraint raises, whatever it is, ends its row with a reason that shows no internals."""
    masks.begin(1, DIGITS, ())
    monkeypatch.setattr(Constraint, "mask", lambda *_: 1 / 0)
    assert masks.fill((MaskRow(1),)) == bytes(VOCAB // 8)
    assert masks.failure(1) == "ZeroDivisionError in its grammar"


@pytest.mark.parametrize("vocab_size", [1, 40, 2047, 2048, 2049, 5000])
def test_masks_are_as_wide_as_the_model(compiler: GrammarCompiler, demo_tokenizer: Tokenizer, vocab_size: int) -> None:
    """A model may have more tokens than its tokenizer, or fewer; those that only one of them has are never allowed."""
    masks = GrammarMasks(compiler)
    masks.attach(vocab_size)
    masks.begin(1, Grammar(GrammarKind.REGEX, "(?s).*"), ())
    packed = masks.fill((MaskRow(1), MaskRow(2)))
    width = -(-vocab_size // 32) * 4
    assert len(packed) == 2 * width
    everything, late = allowed(packed[:width]), allowed(packed[width:])
    assert max(everything, default=0) < min(vocab_size, VOCAB)
    assert late == {id for id in demo_tokenizer.eos_ids if id < vocab_size}


def walk(constraint: Constraint, letters: list[int], seed: int, count: int) -> int:
    """Make tokens until an error; how many there were."""
    for step in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        try:
            constraint.mask((letters[(seed >> 40) % len(letters)],))
        except InvalidGrammar:
            return step
    return count


def test_a_row_does_not_fail_for_its_mates(compiler: GrammarCompiler, demo_tokenizer: Tokenizer) -> None:
    """The states that many answers leave in the lexer of one grammar reach its limit; rows then go on with a fresh one."""
    letters = sorted(ids(demo_tokenizer, "a", "b"))
    shared = compiled(compiler, GROWING)
    lexer = shared.matcher()[0]
    lengths = [walk(Constraint(shared, ()), letters, seed, 300) for seed in range(50)]
    assert lengths == [300] * 50
    assert shared.matcher()[0] is not lexer, "its limit was never reached"


def test_a_minimum_of_tokens(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """Until the minimum, all tokens are allowed but those that end the text; then all are. A grammar beside it has its own mask."""
    masks.begin_minimum(1, 2, (7,))
    masks.begin(2, Grammar(GrammarKind.REGEX, "x"), ())
    every = set(range(VOCAB))
    assert allowed(masks.fill((MaskRow(1),))) == every - {7} - demo_tokenizer.eos_ids
    packed = masks.fill((MaskRow(1, (3,)), MaskRow(2)))
    assert allowed(packed[: VOCAB // 8]) == every - {7} - demo_tokenizer.eos_ids
    assert allowed(packed[VOCAB // 8 :]) == ids(demo_tokenizer, "x")
    assert allowed(masks.fill((MaskRow(1, (4,)),))) == every
    masks.end((1, 2))
    assert not masks.live


def test_a_minimum_that_is_reached_already(masks: GrammarMasks) -> None:
    """A continued request that has enough tokens may end at once."""
    masks.begin_minimum(1, -3, (7,))
    assert allowed(masks.fill((MaskRow(1),))) == set(range(VOCAB))


def test_forced_tokens_come_before_their_masks(masks: GrammarMasks, demo_tokenizer: Tokenizer) -> None:
    """Asking for the tokens that must follow consumes what was made, as far as it is known; masks are those of a row that was not asked.
    What must follow is forbidden from its first wrong token on."""
    grammar = Grammar(GrammarKind.REGEX, "(yes|no), a long and certain text( and more)?")
    text = demo_tokenizer.encode("yes, a long and certain text and more", False).ids
    wrong = demo_tokenizer.encode("zebra", False).ids[0]
    for id in (1, 2):
        masks.begin(id, grammar, ())
    assert masks.forced(1, [], 99) == ()
    assert masks.fill((MaskRow(1),)) == masks.fill((MaskRow(2),))
    seen, pending = 0, tuple[int, ...]()
    for end in range(1, len(text)):
        pending += (text[end - 1],)
        forced = masks.forced(1, text[:end], 3)
        assert len(forced) <= 3 and masks.allowed(1, text[end:]) == len(text) - end
        if forced:
            seen += 1
            assert masks.allowed(1, forced) == len(forced) and masks.allowed(1, (*forced, wrong)) == len(forced)
        if end % 3:  # a row may make several tokens before it needs a mask
            assert masks.fill((MaskRow(1, pending),)) == masks.fill((MaskRow(2, pending),))
            pending = ()
    assert seen > len(text) / 2
    assert masks.allowed(3, (1, 2)) == 2 and masks.forced(3, (1,), 9) == ()
