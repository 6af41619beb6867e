"""Users' mistakes in one line."""

from __future__ import annotations

from loopformer.errors import one_line


def test_what_was_given_is_not_repeated() -> None:
    message = """Does not validate against any of the Union subtypes
Subtypes: [<class 'DataModule'>, <class 'NoneType'>]
Errors:
  - arm: got 'foo'; use one of answer, stack
  - Expected a <class 'NoneType'>. Got value: Namespace(tokenizer=Backend(tokens={
    \t0: AddedToken("<pad>"),
    }), arm='foo')
Given value type: <class 'Namespace'>
Given value: Namespace(arm='foo')"""
    assert one_line(message) == "arm: got 'foo'; use one of answer, stack"


def test_every_cause_is_kept() -> None:
    message = "Errors:\n  - Expected a <class 'NoneType'>\n  - first\n    and its second line\n  - another"
    assert one_line(message) == "first and its second line another"
    assert one_line("Given value: 3") == "Given value: 3", "a message of nothing else stays"


def test_boilerplate_of_a_mistake_within_a_mistake_is_dropped() -> None:
    message = """Does not validate against any of the Union subtypes
Subtypes: [<class 'A'>, <class 'NoneType'>]
Errors:
  - Does not validate against any of the Union subtypes
    Subtypes: [<class 'B'>, <class 'NoneType'>]
    Errors:
      - stages[0].depth: got 0; use 1 or more
      - Expected a <class 'NoneType'>
    Given value type: <class 'dict'>"""
    assert one_line(message) == "stages[0].depth: got 0; use 1 or more"
