"""The colours of all figures, on paper and on the page."""

# The palette of Okabe and Ito, for colour-blind readers too. Each algorithm has the same colour everywhere.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#F0E442",
)


GREY = "#808080"


PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW, GREY)
