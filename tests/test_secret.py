"""The study's secret: where it is looked for, who may read it, what is refused."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench import secret
from bench.errors import UsageError


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No secret of this user's, and a home of its own."""
    monkeypatch.delenv(secret.NAME, raising=False)
    monkeypatch.delenv(secret.FILE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_variable_goes_before_the_file(monkeypatch, tmp_path):
    """SCALEMARK_SECRET, then the file named by SCALEMARK_SECRET_FILE, then the user's own."""
    named = tmp_path / "named"
    secret.write(named, "of the named file")
    secret.write(secret.default_path(), "of this user")
    assert secret.find() == b"of this user"
    monkeypatch.setenv(secret.FILE, str(named))
    assert secret.find() == b"of the named file"
    monkeypatch.setenv(secret.NAME, "of the variable")
    assert secret.find() == b"of the variable"


def test_the_node_that_leads_makes_one_that_stays():
    """Made where there is none, for this user's eyes only, and found again by whoever comes next."""
    made = secret.find(make=True)
    assert len(made) == 32
    assert stat.S_IMODE(secret.default_path().stat().st_mode) == 0o600
    assert secret.find() == secret.find(make=True) == made


def test_a_node_without_one_says_where_it_could_be():
    """Nothing is made for a follower: it would be another one."""
    with pytest.raises(
        UsageError, match=r"no study secret on this node: .*/scalemark/secret is missing: copy node 0"
    ):
        secret.find()
    assert not secret.default_path().exists()


def test_a_file_that_was_named_is_never_made(monkeypatch, tmp_path):
    """A slip in its name would give two nodes two secrets."""
    monkeypatch.setenv(secret.FILE, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no study secret"):
        secret.find(make=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_open_is_refused(mode):
    """Whoever can read it can speak for a node."""
    secret.write(secret.default_path(), secret.fresh())
    secret.default_path().chmod(mode)
    with pytest.raises(UsageError, match="others may read it: chmod 600"):
        secret.find()


def test_a_short_one_is_refused(monkeypatch):
    """White space does not count; the message says how one is made, and never what it was."""
    monkeypatch.setenv(secret.NAME, "  1234567  ")
    with pytest.raises(UsageError, match=r"SCALEMARK_SECRET: .* at least 8 characters \(openssl") as caught:
        secret.find()
    assert "1234567" not in str(caught.value)


def test_who_writes_second_keeps_what_was_first():
    """Two processes of a user may come at the same time: both then have the same one."""
    secret.write(secret.default_path(), "the first one")
    secret.write(secret.default_path(), "the second one")
    assert secret.find() == b"the first one"


def test_a_file_of_another_user_is_refused(monkeypatch):
    """Who owns a file knows what is in it; root's is as good as one's own."""
    secret.write(secret.default_path(), "of somebody else")
    owner = secret.default_path().stat().st_uid
    monkeypatch.setattr(secret, "ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        secret.find()
    monkeypatch.setattr(secret, "ROOT", owner)
    assert secret.find() == b"of somebody else"


def test_nobody_sees_half_a_secret():
    """Leaders of one user that start together all have the same one, and nothing else is left in its folder."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            assert len(set(pool.map(lambda _: secret.find(make=True), range(8)))) == 1
            secret.default_path().unlink()
    assert list(secret.default_path().parent.iterdir()) == []
