"""`selftune tune`: a robot from its MJCF or URDF file tunes itself in MuJoCo."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from .options import Json, Quiet, end
from .screen import Screen, new_table, refusing

MANY = 14
"""Robots with more joints get a word about the time."""
OPTIONS = {
    "fixed": "--fix",
    "joints": "--joint",
    "tool": "--tool",
    "torque_limits": "--torque-limit",
    "home": "--home",
    "dt": "--dt",
}
"""Arguments of `RobotArm.from_file` as options of the command."""


def tune(
    robot: Annotated[
        str | None,
        typer.Argument(
            metavar="ROBOT", help="An MJCF (.xml) or URDF file, or a name of the list. Without: list the robots found."
        ),
    ] = None,
    payload: Annotated[
        float | None,
        typer.Option(min=0, help="The payload in kg after half of the run; before, it is a fifth. Default: by rule."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="The length of the run in seconds.")] = 60.0,
    start: Annotated[float, typer.Option(min=0.01, help="The factor on the feedback gains at the start.")] = 0.25,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the plant: masses, friction and noise.")] = 0,
    torque_limit: Annotated[
        list[str] | None,
        typer.Option(
            help="The torque limit in N·m (N for slides): a number for all joints, a number for each joint, or "
            "JOINT=NUMBER. Repeat for several."
        ),
    ] = None,
    joint: Annotated[
        list[str] | None, typer.Option(help="A joint that the robot has; the others are fixed. Repeat for several.")
    ] = None,
    fix: Annotated[list[str] | None, typer.Option(help="A joint to fix at home. Repeat for several.")] = None,
    home: Annotated[
        list[float] | None, typer.Option(help="The home position in rad (m for slides): once for each joint.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="The site or body that carries the payload.")] = None,
    dt: Annotated[float, typer.Option(min=1e-5, help="The control period in seconds.")] = 0.002,
    export: Annotated[bool, typer.Option("--export", help="Also write the tuned controller as C.")] = False,
    as_tuned: Annotated[
        bool,
        typer.Option(
            "--as-tuned",
            help="Let the C start with the last gains, even if their gain margin is below 2 or their phase margin "
            "below 30°.",
        ),
    ] = False,
    no_commissioning: Annotated[
        bool, typer.Option("--no-commissioning", help="Learn at once, without checks and dry runs.")
    ] = False,
    no_video: Annotated[bool, typer.Option("--no-video", help="Render no video.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder. Default: results/tune/NAME.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Read a robot, build its model, policy and path by rule, and let it tune itself on physics that differ from it.

    The plant in MuJoCo has heavier links, friction, slower motors, noise, delay, and a payload that grows halfway.

    Writes a report with a video, the gains (tuned.toml) and, with --export, C.
    """
    screen = Screen(quiet, as_json)
    faults: list[str] = []
    with refusing(continues=False):
        import jax

        from ..foundation.errors import ArgumentError, InputError

        with jax.enable_x64(True):
            try:
                if robot is None:
                    _offer(screen)
                    return
                options: dict[str, Any] = {"fixed": tuple(fix or ()), "tool": tool, "dt": dt}
                options |= {"joints": tuple(joint) if joint else None, "home": home or None}
                limits = _limits(torque_limit or [])
                faults = _tune(
                    screen,
                    _file(robot),
                    options | {"torque_limits": limits},
                    {
                        "seconds": seconds,
                        "start": start,
                        "seed": seed,
                        "payload": None if payload is None else (payload / 5, payload),
                        "with_commissioning": not no_commissioning,
                    },
                    out,
                    export=export,
                    as_tuned=as_tuned,
                    with_video=not no_video,
                )
            except ArgumentError as error:
                raise InputError(_with_options(str(error))) from None
            except ModuleNotFoundError as error:
                raise InputError(str(error)) from None
    end(screen, faults)


def _tune(
    screen: Screen,
    path: Path,
    options: dict[str, Any],
    settings: dict[str, Any],
    out: Path | None,
    *,
    export: bool,
    as_tuned: bool,
    with_video: bool,
) -> list[str]:
    from ..foundation import extras
    from ..models.robot_arm import RobotArm

    robot = RobotArm.from_file(path, **options)
    tuning = extras.load("robots.file_tuning", asked_for="selftune tune", extra="robots")
    page = extras.load("robots.file_tuning_page", asked_for="selftune tune")
    folder = Path("results/tune", path.stem if path.stem != "robot" else path.parent.name) if out is None else out
    names = [link.name for link in robot.body.links]
    screen.note(f"{robot.name}: {len(names)} joint{'s' if len(names) > 1 else ''} ({', '.join(names)})")
    for note in robot.notes:
        screen.note(note)
    if robot.joints > MANY:
        screen.note(
            f"The program for {robot.joints} joints compiles for minutes; --joint chooses the joints of an arm."
        )
    with screen.progress("tuning") as progress:
        tuned = tuning.tune(robot, progress=progress, **settings)
    report = page.write(tuned, folder, with_video=with_video)
    numbers = page.summary(tuned)
    made = tuned.commissioned
    titles = page.gain_titles(tuned)
    table = new_table(f"{robot.name}: RMS errors and gains", "joint", "first lap", "last lap", *titles)
    first, last = tuned.rms()
    for i, link in enumerate(robot.body.links):
        unit = "mrad" if link.kind == "hinge" else "mm"
        gains = (f"{rows[0][i]:.3g} → {rows[-1][i]:.3g}" for rows in tuned.run.theta.values())
        table.add_row(link.name, f"{1e3 * first[i]:.3g} {unit}", f"{1e3 * last[i]:.3g} {unit}", *gains)
    screen.show(table)
    costs, carried = numbers["cost"], numbers["payload"]
    screen.show(
        f"cost of a step with the heavy payload and the learned parameters: {costs['start gains']:.3g} with the start "
        f"gains, {costs['tuned gains']:.3g} with the tuned gains"
    )
    screen.show(
        f"payload: {carried['heavy estimate']:.3g} kg estimated, {carried['heavy truth']:.3g} kg true; "
        f"before the change {carried['light estimate']:.3g} kg and {carried['light truth']:.3g} kg"
    )
    if bounds := tuned.at_bounds():
        screen.show(f"at a bound of its range: {', '.join(map(str, bounds))}")
    robust = tuned.robustness
    safer = None if robust is None or robust.safer_cost is None else robust.safer
    starts_safer = safer is not None and not as_tuned
    if robust is not None:
        screen.show(f"margins on the model, start gains: {robust.start}")
        screen.show(f"margins on the model, tuned gains: {robust.tuned}")
        if robust.faults:
            screen.show(robust.warning() + ("" if robust.safer is None else f" They are in {page.GAINS}."))
            if export and starts_safer:
                screen.show("The C starts with the gains with margins; --as-tuned lets it start with the last gains.")
    written = None
    theta = safer if starts_safer else tuned.run.last_theta
    if export and not tuned.run.crashed:
        written = tuned.loop.export_c(
            folder / "c",
            name="robot",
            controller=None if made is None else made.controller,
            guard=None if made is None else made.guard,
            theta=theta,
            a_hat=tuned.run.last_a_hat,
        )
    screen.show(
        f"report  {report}\ngains   {folder / page.GAINS}" + ("" if written is None else f"\nC       {written}")
    )
    c = None if written is None else str(written)
    begun = None if c is None else "gains with margins" if starts_safer else "tuned gains"
    screen.give({"folder": str(folder), "report": str(report), "c": c, "c starts with": begun, **numbers})
    faults = [] if made is None else [f"commissioning: {reason}" for reason in made.reasons]
    return faults + (["the robot crashed while it learned"] if tuned.run.crashed else [])


def _limits(given: list[str]) -> Any:
    """Return the torque limits as `RobotArm.from_file` takes them: None, a number, numbers, or numbers by joint."""
    from ..foundation.errors import InputError

    pairs = [text.rpartition("=") for text in given]
    expected = "--torque-limit: expected numbers, or JOINT=NUMBER for each joint that you name, got "
    try:
        numbers = [float(number) for _, _, number in pairs]
    except ValueError:
        raise InputError(expected + ", ".join(given)) from None
    names = [name for name, sign, _ in pairs if sign]
    if names and (len(names) < len(given) or len(set(names)) < len(names)):
        raise InputError(expected + ", ".join(given))
    if names:
        return dict(zip(names, numbers, strict=True))
    return None if not numbers else numbers[0] if len(numbers) == 1 else numbers


def _with_options(message: str) -> str:
    """Return the message of an error with the options of the command in place of arguments in Python."""
    names = "|".join(OPTIONS)

    def option(found: re.Match[str]) -> str:
        name, value = OPTIONS[found[1]], found[2]
        return f"{name} NAME" if value == "(…)" else f"{name} …" if value == "…" else f"{name} {value[2:-3]}"

    message = re.sub(rf"\b({names})=(\('[^']*',\)|\(…\)|…)", option, message)
    return re.sub(rf"^({names}):", lambda found: f"{OPTIONS[found[1]]}:", message)


def _file(robot: str) -> Path:
    """Return the path of a file, or of a robot of the list."""
    path = Path(robot)
    if path.exists() or path.suffix or "/" not in robot:
        return path  # if there is no such file, the reader of files says so
    from ..foundation import extras

    return extras.load("robots.installed", asked_for="selftune tune", extra="robots").find(robot)


def _offer(screen: Screen) -> None:
    """Print the robots that are installed with other packages."""
    from ..foundation import extras

    installed = extras.load("robots.installed", asked_for="selftune tune", extra="robots")
    table = new_table("robots on this machine: selftune tune NAME", "name", "robot", "joints")
    rows = []
    for package, path, name, joints in installed.robots():
        short = installed.short_name(package, path)
        rows.append({"name": short, "package": package, "robot": name, "joints": joints, "file": str(path)})
        table.add_row(escape(short), escape(name), str(joints))
    if rows:
        screen.show(table)
    else:
        known = ", ".join(installed.PLACES)
        screen.show(f"no robots found; give a file, or install one of: {known}")
    screen.give({"robots": rows})
