"""The timing of one step: what `agent.act` computes between the measurement and the control."""

from .svg import Colours, Drawing


def draw(colours: Colours) -> Drawing:
    picture = Drawing(1040, 340, "One call of agent.act in a loop, from the measurement to the control", colours)
    blue, green, orange, muted = colours.blue, colours.green, colours.orange, colours.muted
    left, right, end = 100, 990, 820
    for x, label in ((left, "sample t"), (right, "sample t + 1")):
        picture.line([(x, 36), (x, 300)], colour=muted, width=1.2, dashed=True)
        picture.text(x, 24, label, size=14, colour=muted)
    picture.text(88, 75, "plant", size=15, anchor="end", bold=True)
    picture.text(88, 200, "agent", size=15, anchor="end", bold=True)

    picture.line([(left, 70), (end, 70)], colour=muted, width=1.6)
    picture.text((left + end) / 2, 58, "still moves with u(t − 1)", size=13, colour=muted)
    picture.line([(end, 70), (right, 70)], colour=orange, width=3)
    picture.text((end + right) / 2, 58, "moves with u(t)", size=13, colour=orange)

    boxes = [
        (["Guard", "is x(t) finite", "and plausible?"], muted),
        (["estimator", "â: what was f,", "from x(t−1) to x(t)?"], green),
        (["policy", "u(t) = π(x, θ, f)", "with f = f(x, â)"], orange),
        (["tuner", "y = ∂x/∂θ, gradient G,", "θ for step t + 1"], blue),
    ]
    width, gap = 163, 17
    for number, (lines, colour) in enumerate(boxes):
        x = left + 10 + number * (width + gap)
        picture.box(x, 160, width, 80, lines, colour=colour)
        if number:
            picture.arrow((x - gap, 200), (x - 1, 200))
    picture.arrow((left, 74), (left, 200), (left + 9, 200))
    picture.text(left + 8, 120, "measure x(t)", size=13, colour=muted, anchor="start")
    picture.arrow((end - 10, 200), (end, 200), (end, 74), colour=orange)
    picture.text(end - 8, 120, "send u(t)", size=13, colour=orange, anchor="end")
    picture.text((end + right) / 2 + 6, 205, "the agent waits", size=13, colour=muted)

    picture.line([(left + 10, 262), (end, 262)], colour=muted, width=1.2)
    picture.text((left + end) / 2, 282, "one call of agent.act: microseconds (not to scale)", size=13, colour=muted)
    picture.line([(left, 312), (right, 312)], colour=muted, width=1.2)
    picture.text((left + right) / 2, 332, "one sampling period: milliseconds", size=13, colour=muted)
    return picture
