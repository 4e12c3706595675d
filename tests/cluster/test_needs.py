"""Where the cluster in a box cannot run, its tests say why."""

import os

import pytest

from tests.cluster import needs

pytestmark = pytest.mark.cluster


@pytest.fixture
def bare(monkeypatch):
    """Root, outside CI."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("CI", raising=False)
    return monkeypatch


def test_another_user_skips_even_under_ci(bare):
    """Without root nothing here can run, whatever is installed."""
    bare.setattr(os, "geteuid", lambda: 1000)
    bare.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        needs.require("sh")


def test_a_missing_program_is_named_with_its_package(bare):
    """The reason says what is missing and what brings it."""
    bare.setattr(needs.shutil, "which", lambda program, path: None if program in needs.SLURM else program)
    with pytest.raises(pytest.skip.Exception, match=r"no munged, .*apt-get install munge slurm-wlm"):
        needs.require(*needs.LAB, *needs.SLURM)


def test_a_missing_program_fails_under_ci(bare):
    """There everything is to be installed, so that nothing is skipped unseen."""
    bare.setenv("CI", "true")
    bare.setattr(needs.shutil, "which", lambda program, path: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install iproute2 util-linux"):
        needs.require(*needs.LAB)


def test_a_machine_that_refuses_namespaces_skips_with_its_words(bare):
    """What unshare, mount, ip or tc said is the reason."""
    bare.setattr(needs, "require", lambda *programs: None)
    bare.setattr(needs, "TRIAL", "echo not permitted >&2; exit 1")
    with pytest.raises(pytest.skip.Exception, match=r"makes no cluster in a box: .*not permitted"):
        needs.require_namespaces()
