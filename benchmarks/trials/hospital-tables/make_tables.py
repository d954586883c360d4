"""Write the four tables of this task into the folder in which it is started: python make_tables.py."""

import random
from datetime import date, timedelta
from pathlib import Path

SITES = {  # patients, words for the outcome, how a gap is written
    "aachen": (240, ("krank", "gesund"), ""),
    "lund": (100, ("sjuk", "frisk"), "n/d"),
    "porto": (150, ("ill", "well"), "NA"),
    "turku": (40, ("ill", "well"), ""),
}
COLUMNS = ["crp", "lactate", "sodium", "pulse"]


def table(site: str) -> list[str]:
    """Return the lines of a hospital's file: one to nine visits of each patient, whose outcome is the patient's."""
    patients, words, gap = SITES[site]
    draw = random.Random(site)
    lines = [f"case_no,visit,sex,{','.join(COLUMNS)},outcome"]
    for number in range(1, patients + 1):
        usual = [draw.gauss(0, 1) for _ in COLUMNS]
        risk = sum(usual) if site != "lund" else -sum(usual)  # Lund's outcome is written the wrong way round
        word = words[0] if risk + draw.gauss(0, 0.3) > 0 else words[1]
        sex, day = draw.choice("fm"), date(2024, 1, 1) + timedelta(draw.randrange(600))
        for _ in range(draw.randint(1, 9)):
            day += timedelta(draw.randint(1, 30))
            seen = [gap if draw.random() < 0.05 else f"{value + draw.gauss(0, 0.1):.2f}" for value in usual]
            lines.append(f"{number},{day},{sex},{','.join(seen)},{word}")
    return lines


for name in SITES:
    Path(f"{name}.csv").write_text("\n".join(table(name)) + "\n")
