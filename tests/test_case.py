"""Case: ids, batches, and what its name says."""

import msgspec
import pytest

from bench.case import Case, canonical, slug


def test_weak_scaling_keeps_the_batch_of_a_device():
    """Under weak scaling the batch is a device's, and the global batch grows with the devices."""
    case = Case(strategy="ddp", ranks=4, batch=256)
    assert (case.device_batch, case.global_batch) == (256, 1024)


def test_strong_scaling_keeps_the_global_batch():
    """Under strong scaling the batch is the global one, divided over the devices."""
    case = Case(strategy="ddp", ranks=4, batch=256, scaling="strong")
    assert (case.device_batch, case.global_batch) == (64, 256)


def test_an_id_depends_on_every_setting_and_on_nothing_else():
    """Equal cases have equal ids, different ones different ids, whatever the order of their arguments."""
    one = Case(model="mlp", model_args={"width": 8, "depth": 2})
    same = Case(model="mlp", model_args={"depth": 2, "width": 8})
    assert one.id == same.id
    assert one.id != Case(model="mlp", model_args={"width": 8, "depth": 3}).id
    assert Case().id != Case(seed=1).id


def test_an_id_ignores_defaults():
    """A field at its default is not hashed, so a field that is added later changes no id."""
    assert canonical(Case()) == b"{}"
    assert b"seed" not in canonical(Case(ranks=2))


def test_a_slug_is_safe_in_a_file_name():
    """Names with separators, markup or control characters become letters, digits, dots and dashes."""
    text = slug(Case(model="a.b:<c>", data="imagefolder:/x/../y", backend="gl\x1b[31moo"))
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert ".." not in text.strip(".")
    assert len(slug(Case(model="m" * 10_000))) <= 70


def test_a_slug_tells_settings_apart():
    """Settings that differ from the usual ones stand in the name."""
    text = slug(
        Case(
            strategy="ddp", ranks=2, num_workers=3, pin_memory=True, sync_bn=True, scaling="strong", threads=2
        )
    )
    for part in ("ddp", "n2", "w3", "pin", "syncbn", "strong", "t2"):
        assert part in text.split("-")


@pytest.mark.parametrize("field", ["ranks", "batch", "steps"])
def test_counts_are_at_least_one(field):
    """Zero or less of what is counted is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({field: 0}, Case)


def test_an_unknown_field_is_refused():
    """A field that no case has is an error, not ignored."""
    with pytest.raises(msgspec.ValidationError, match="num_worker"):
        msgspec.convert({"num_worker": 2}, Case)


def test_names_of_earlier_cells_stay_as_they_were():
    """Ids are the resume key: settings that are newer than a study change none of its cells."""
    assert Case().id == "single-n1-b16-resnet-small-device-44136fa355"
    kept = Case(data="photos", num_workers=2, persistent_workers=True)
    assert kept.id.startswith("single-n1-b16-resnet-small-photos-w2-persistent-")
    off = Case(data="photos", num_workers=2, persistent_workers=False)
    assert off.id.startswith("single-n1-b16-resnet-small-photos-w2-")
    assert "persistent" not in off.id
    assert "nobroadcast" in Case(strategy="ddp", broadcast_buffers=False).id
