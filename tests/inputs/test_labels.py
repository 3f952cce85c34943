"""Labels as written -> class ids: the rules, their order, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timm.data import ImageNetInfo

from clcurv.errors import DataError, MismatchError
from clcurv.inputs.labels import NameIndex, check_head, resolve_labels, resolve_stated


def test_integers_stay_what_they_are() -> None:
    found = resolve_labels([7, 3, 3, 900], num_classes=1000)
    assert found.ids == {3: 3, 7: 7, 900: 900}
    assert found.rule == "integers"


def test_digit_names_are_numbers_not_positions() -> None:
    found = resolve_labels(["1", "10", "2"], num_classes=11)
    assert found.ids == {"1": 1, "10": 10, "2": 2}


def test_two_spellings_of_one_number_are_refused() -> None:
    with pytest.raises(DataError, match="same class"):
        resolve_labels(["1", "01"], num_classes=2)


def test_checkpoint_names_win_over_sorted_order() -> None:
    found = resolve_labels(
        ["NEGATIVE", "positive"], num_classes=2, id2label={0: "Positive", 1: "negative"}
    )
    assert found.ids == {"NEGATIVE": 1, "positive": 0}
    assert found.rule == "id2label"


def test_names_that_contradict_the_checkpoint_are_refused() -> None:
    with pytest.raises(DataError, match="'neg'") as caught:
        resolve_labels(["neg", "positive"], num_classes=2, id2label={0: "positive", 1: "negative"})
    assert "class numbers" in (caught.value.hint or "")


def test_generic_checkpoint_names_say_nothing() -> None:
    generic = {0: "LABEL_0", 1: "LABEL_1"}
    found = resolve_labels(["no", "yes"], num_classes=2, id2label=generic)
    assert found.ids == {"no": 0, "yes": 1}
    assert found.rule == "sorted"
    assert "sorted order (no=0, yes=1)" in found.notes[0]
    assert resolve_labels(["LABEL_1"], num_classes=2, id2label=generic).ids == {"LABEL_1": 1}


def test_wordnet_ids_map_into_the_head_when_only_some_are_there() -> None:
    found = resolve_labels(["n02123045", "n01440764", "n15075141"], num_classes=1000)
    assert found.ids == {"n01440764": 0, "n02123045": 281, "n15075141": 999}
    assert found.rule == "wordnet"


def test_a_head_with_a_background_class_counts_from_one() -> None:
    found = resolve_labels(["n01440764", "n02123045"], num_classes=1001)
    assert found.ids == {"n01440764": 1, "n02123045": 282}


def test_wordnet_ids_for_a_small_head_follow_sorted_order() -> None:
    found = resolve_labels(["n02123045", "n01440764"], num_classes=2)
    assert found.ids == {"n01440764": 0, "n02123045": 1}


def test_a_wordnet_id_outside_imagenet_is_named() -> None:
    with pytest.raises(MismatchError, match="n00000001"):
        resolve_labels(["n00000001", "n02123045"], num_classes=1000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tabby, tabby cat", 281),
        ("tabby", 281),
        ("Egyptian_cat", 285),
        ("maillot", 638),
        ("great white shark", 2),
    ],
)
def test_imagenet_names(name: str, expected: int) -> None:
    found = resolve_labels([name, "tench"], num_classes=1000)
    assert found.ids == {name: expected, "tench": 0}
    assert found.rule == "imagenet-names"


def test_a_name_of_two_imagenet_classes_is_refused() -> None:
    with pytest.raises(DataError, match="names 2 classes"):
        resolve_labels(["crane", "tench"], num_classes=1000)


def test_all_imagenet_descriptions_but_the_cranes_find_themselves() -> None:
    names = dict(enumerate(ImageNetInfo().label_descriptions()))
    index = NameIndex(names)
    assert all(index.find(name) == i for i, name in names.items() if name != "crane")


@given(st.sets(st.text("abcXYZ", min_size=1, max_size=6), min_size=2, max_size=12))
def test_sorted_order_is_imagefolders(names: set[str]) -> None:
    found = resolve_labels(names, num_classes=len(names))
    assert [found.ids[name] for name in sorted(names)] == list(range(len(names)))


def test_fewer_names_than_classes_cannot_be_told() -> None:
    with pytest.raises(DataError, match=r"2 class names .* head with 10"):
        resolve_labels(["ant", "bee"], num_classes=10)


def test_more_names_than_classes_do_not_fit() -> None:
    with pytest.raises(MismatchError, match=r"3 classes .* head has 2"):
        resolve_labels(["ant", "bee", "cow"], num_classes=2)


def test_the_users_map_goes_first() -> None:
    found = resolve_labels([0, 1], num_classes=2, label_map={"0": 1, "1": 0})
    assert found.ids == {0: 1, 1: 0}
    with pytest.raises(DataError, match="no entry for 'bee'"):
        resolve_labels(["ant", "bee"], num_classes=2, label_map={"ant": 0})


def test_numbers_stated_by_the_data_set() -> None:
    assert resolve_stated(["b", "a"], num_classes=2).ids == {0: 0, 1: 1}
    by_name = resolve_stated(["neg", "pos"], num_classes=2, id2label={0: "pos", 1: "neg"})
    assert by_name.ids == {0: 1, 1: 0}
    unlike = resolve_stated(["x", "y"], num_classes=2, id2label={0: "pos", 1: "neg"})
    assert unlike.ids == {0: 0, 1: 1}
    assert "not the checkpoint's" in unlike.notes[0]


@pytest.mark.parametrize(("ids", "shown"), [([0, 5, 5], "'5'"), ([0, -1], "'-1'")])
def test_labels_outside_the_head(ids: list[int], shown: str) -> None:
    count = len(ids) - 1
    with pytest.raises(MismatchError, match=f"label {shown} .*{count} of {len(ids)}") as caught:
        check_head(ids, num_classes=2, names={})
    assert caught.value.hint


def test_labels_inside_the_head_pass() -> None:
    check_head([0, 1, 9], num_classes=10, names={})
    check_head([0, 1, 9], num_classes=None, names={})
