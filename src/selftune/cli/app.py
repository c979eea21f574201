"""The command `selftune`. Each command has its own file, and imports slow modules when it runs."""

from importlib import metadata
from typing import Annotated

import typer

from . import (
    bench,
    commission_command,
    compare_command,
    export_command,
    info_command,
    monitor_command,
    new_command,
    play_command,
    replay_command,
    report_command,
    reproduce_command,
    run_command,
    sweep_command,
    tune_command,
    verify_command,
)

app = typer.Typer(
    name="selftune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Controllers that tune themselves while they run.",
    epilog="Exit codes: 0 success; 1 a check failed or a run diverged; 2 invalid usage, configuration or folder; "
    "130 interrupted. "
    "Results go to stdout, everything else to stderr.",
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"selftune {metadata.version('selftune')}")
        raise typer.Exit
    return asked


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(bench.app, name="bench")
app.command(epilog="Examples:  selftune reproduce   |   selftune reproduce --seeds 4 --periods 2 -o results/small")(
    reproduce_command.reproduce
)
app.command(epilog="Examples:  selftune verify   |   selftune verify rates   |   selftune verify certificates --json")(
    verify_command.verify
)
app.command(epilog="Example:  selftune new cart")(new_command.new)
app.command(epilog="Example:  selftune new cart; selftune run cart/cart.toml -o results/cart")(run_command.run)
app.command(
    epilog="Examples:  selftune sweep cart/cart-sweep.toml   |   selftune sweep FILE --executor tls://host:8786"
)(sweep_command.sweep)
app.command(
    epilog="Examples:  selftune commission motor.py:loop   |   "
    "selftune commission motor.py:loop --plant motor.py:plant -o results/motor"
)(commission_command.commission)
app.command(
    epilog="Examples:  selftune replay log.csv --loop motor.py:loop   |   "
    "selftune replay flight.ulg --loop drone.py:loop --map drone.toml -o results/flight"
)(replay_command.replay)
app.command(epilog="Examples:  selftune monitor run.mcap   |   selftune monitor ws://127.0.0.1:8765 --browser")(
    monitor_command.monitor
)
app.command(epilog="Examples:  selftune tune   |   selftune tune panda.xml --seconds 60 --export -o results/panda")(
    tune_command.tune
)
app.command(epilog="Example:  selftune export cart/cart.py:controller -o results/cart-c")(export_command.export)
app.command(epilog="Examples:  selftune play   |   selftune play playground/dist --port 0")(play_command.play)
app.command(epilog="Example:  selftune report results/paper")(report_command.report)
app.command(
    epilog="Examples:  selftune compare results/cart results/cart-gaps   |   "
    "selftune compare results/sweep --over tuner --by noise"
)(compare_command.compare)
app.command(epilog="Examples:  selftune info   |   selftune info results/paper --json")(info_command.info)
