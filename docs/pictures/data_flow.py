"""The data flow: which parts a user brings, what the library makes of them, and what comes out."""

from .svg import Colours, Drawing


def draw(colours: Colours) -> Drawing:
    picture = Drawing(1040, 420, "From a plant, a policy and a cost to a run, an agent and firmware", colours)
    blue, green, orange = colours.blue, colours.green, colours.orange
    picture.text(105, 24, "what you bring", size=14, colour=colours.muted)
    picture.text(520, 24, "what selftune makes", size=14, colour=colours.muted)
    picture.text(925, 24, "what you get", size=14, colour=colours.muted)

    picture.box(10, 40, 190, 62, ["models", "a plant of two numbers"])
    picture.box(10, 112, 190, 62, ["policies", "PID, cascade, …"])
    picture.box(10, 184, 190, 62, ["cost, reference", "what counts as good"])
    picture.box(10, 266, 190, 62, ["your four functions", "instead of the above"])
    picture.box(10, 348, 190, 62, ["Scenario", "what nature decides"])

    picture.box(250, 112, 120, 62, ["Loop", "start and scales"])
    picture.arrow((200, 143), (248, 143))
    for y in (71, 215):
        picture.line([(200, y), (225, y), (225, 143)], colour=colours.muted, width=1.6)
    picture.box(420, 184, 160, 62, ["System", "g, f, π, h"], colour=blue)
    picture.arrow((370, 143), (500, 143), (500, 182))
    picture.arrow((200, 297), (500, 297), (500, 248))

    picture.box(420, 40, 160, 62, ["tuner (ALG)", "GaussNewton, …"], colour=blue)
    picture.box(420, 320, 160, 62, ["estimator (EST)", "Kalman, gradient, …"], colour=green)
    picture.box(640, 164, 120, 102, ["Controller", "Algorithm 1:", "act, observe"], colour=blue)
    picture.arrow((580, 71), (700, 71), (700, 162))
    picture.arrow((580, 215), (638, 215))
    picture.arrow((580, 351), (700, 351), (700, 268))

    picture.box(830, 40, 200, 76, ["Agent", "measurement in,", "control out"], colour=orange)
    picture.box(830, 134, 200, 62, ["export_c", "the same step as C99"], colour=orange)
    picture.box(830, 214, 200, 62, ["simulate → Run", "states, gains, costs"], colour=orange)
    picture.box(830, 304, 200, 62, ["regret, theory", "sweeps, plots, report"], colour=orange)
    picture.arrow((760, 190), (798, 190), (798, 78), (828, 78))
    picture.arrow((798, 165), (828, 165))
    picture.arrow((760, 235), (828, 235))
    picture.text(790, 132, "Guard", size=13, colour=colours.muted, anchor="end")
    picture.arrow((200, 396), (798, 396), (798, 257), (828, 257))
    picture.arrow((930, 276), (930, 302))
    return picture
