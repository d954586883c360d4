"""The charter: what a consortium signs is what is played.

``capped.py`` weighs by member, with caps, fixed weights, a clip and a floor.
"""

from hanse.base.wings import Wing

WING = Wing("charter", names={"weigh": {"capped": "hanse.wings.charter.capped:Capped"}})
