"""TGI's list of adapters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.process import run
from tgi_core.adapters import AdapterSource, can_be_name, parse_adapters
from tgi_core.cli.shard_flags import shard_flags
from tgi_core.cli.weights import check_adapters
from tgi_core.config import Settings
from tgi_core.errors import StartupError


def test_the_syntax_is_tgis() -> None:
    """Ids of the hub, with a revision or not, and names for directories; spaces and an empty end do no harm."""
    assert parse_adapters("org/one, two=/path/to/dir,org/three@v1,four=org/4@abc ,") == (
        AdapterSource("org/one", "org/one"),
        AdapterSource("two", "/path/to/dir"),
        AdapterSource("org/three", "org/three", "v1"),
        AdapterSource("four", "org/4", "abc"),
    )
    assert parse_adapters(None) == parse_adapters("") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=b=c", "must be HUB_ID"),
        ("a@b@c", "must be HUB_ID"),
        ("=x", "must be HUB_ID"),
        ("a=", "must be HUB_ID"),
        ("a@", "must be HUB_ID"),
        ("@b", "must be HUB_ID"),
        ("/path/to/dir", "use NAME=/path/to/dir"),
        ("../dir", "use NAME=../dir"),
        ("a/../b=dir", "cannot be the name"),
        ('quo"te=dir', "cannot be the name"),
        (f"{'n' * 257}=dir", "cannot be the name"),
        ("tgi=dir", "reserved for the base model"),
        ("a=x,b=y,a=z", "a is used twice"),
        ("org/one,org/one@v1", "org/one is used twice"),
    ],
)
def test_what_is_no_list(text: str, says: str) -> None:
    """Each fault is one line with the flag and the item."""
    with pytest.raises(StartupError, match=r"^--lora-adapters ") as caught:
        parse_adapters(text)
    assert says in str(caught.value)


@given(st.lists(st.text(alphabet="ab/=@.,-~ \0", max_size=12), max_size=3))
def test_any_text(items: list[str]) -> None:
    """Whatever the text, it is refused in one line, or names can be names and the list can be written again."""
    try:
        sources = parse_adapters(",".join(items))
    except StartupError:
        return
    assert all(can_be_name(source.name) for source in sources)
    assert parse_adapters(",".join(map(str, sources))) == sources


def test_the_models_own_name_is_taken() -> None:
    """An adapter could not be told from the model."""
    for settings in (Settings(model_id="org/m", lora_adapters="org/m"), Settings(served_model_name="n", lora_adapters="n=dir")):
        with pytest.raises(StartupError, match="name of the base model"):
            check_adapters(settings)


def test_a_shard_gets_the_flag() -> None:
    """What starts a shard passes the list on."""
    arguments = shard_flags(Settings(lora_adapters="a/b@c"))
    assert arguments[arguments.index("--lora-adapters") + 1] == "a/b@c"


@pytest.mark.parametrize("command", ["serve", "shard"])
def test_a_bad_list_ends_the_start(command: str) -> None:
    """One line, exit status 1, also by TGI's variable."""
    result = run(command, "--backend", "reference", extra={"LORA_ADAPTERS": "a@b@c"})
    assert result.returncode == 1, result.stderr
    assert result.stderr.splitlines()[-1].startswith("tgi: error: --lora-adapters a@b@c: must be HUB_ID")
