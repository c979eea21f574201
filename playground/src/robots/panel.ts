/** A panel with two robots in MuJoCo: one tunes itself, the other keeps its gains. */
import { about, button, buttons, choice, element, group, layout, slider, takeAway } from "../controls";
import { History } from "../history";
import type { Panel } from "../main";
import { Plot, shortNumber, type Series } from "../plot";
import { Random } from "../random";
import { withDefaults, writeAddress, type Values } from "../settings";
import { GuardReport } from "./guard_report";
import { loadMujoco, type MainModule } from "./mujoco";
import { Pilot, type RobotController } from "./pilot";
import type { Noise, Plant, Push, Vector, World } from "./plant";
import { Stage, type StageOptions } from "./stage";

export interface Knob {
  name: string;
  label: string;
  low: number;
  high: number;
  step: number;
  show: (value: number) => string;
}

export type Starts = "soft" | "nominal" | "stiff";
export type Settings = { start: Starts; speed: number; payload: number; wind: number; disturbance: number; seed: number };

/** What differs between the robots. */
export interface RobotOptions {
  name: string;
  heading: string;
  sentences: string[];
  guide: string;
  load: () => Promise<RobotController>;
  plant: (mujoco: MainModule, noise: Noise) => Plant;
  /** The context of a step for the controller. */
  context: (plant: Plant) => (step: number) => unknown;
  /** The gains of a start, by their names in the controller. */
  starts: Record<Starts, Record<string, ArrayLike<number>>>;
  /** The present gains, in the order of `series`. */
  gains: (controller: RobotController) => number[];
  series: Series[];
  gainsTitle: string;
  estimate: { title: string; labels: [string, string]; truth: (values: Settings) => number; found: (a: Float64Array) => number };
  knobs: Knob[];
  defaults: Omit<Settings, "start" | "speed" | "seed">;
  world: (values: Settings) => Omit<World, "push">;
  /** The thing that follows the path. */
  tracked: string;
  /** The unit of the error, and its size in metres. */
  unit: [string, number];
  /** The number of the measurement that is unplugged, and its name. */
  sensor: { index: number; name: string };
  /** Newtons for each metre of pulling, and the most. */
  pull: { stiffness: number; most: number };
  /** The force of the button, in newtons. */
  shove: Vector;
  stage: (mujoco: MainModule, plant: Plant) => Omit<StageOptions, "path" | "pulled" | "labels">;
  python: (values: Settings) => string;
  files: { source: string; header: string; toml: (values: Settings) => string };
}

const STARTS: Record<Starts, string> = {
  soft: "a tenth of the usual feedback",
  nominal: "the usual feedback",
  stiff: "four times the usual feedback",
};
/** The seconds of a push by the button. */
const SHOVE = 0.15;
/** Before this time, an RMS has too few values. */
const FIRST = 0.5;

export function robotPanel(options: RobotOptions): Panel {
  return (place, given) => show(options, place, given);
}

function show(options: RobotOptions, place: HTMLElement, given: URLSearchParams): () => void {
  const ranges = Object.fromEntries(options.knobs.map(({ name, low, high }) => [name, [low, high] as [number, number]]));
  const values = withDefaults(
    { start: "soft", speed: 1, seed: 1, ...options.defaults } as Values,
    given,
    { payload: [0, 0], wind: [0, 0], disturbance: [0, 0], ...ranges, start: Object.keys(STARTS), speed: [0.25, 8], seed: [0, 99_999] },
  ) as Settings;
  values.seed = Math.round(values.seed);

  const two = [
    { label: "tunes itself", colour: "--learning" },
    { label: "fixed gains", colour: "--fixed" },
  ];
  const [unit, size] = options.unit;
  const [truthLabel, foundLabel] = options.estimate.labels;
  const plots = {
    error: new Plot({ title: `Error of the ${options.tracked}, ${unit}, RMS of a lap`, along: "seconds", series: two, logarithmic: true }),
    gains: new Plot({ title: options.gainsTitle, along: "seconds", series: options.series, logarithmic: true }),
    estimate: new Plot({
      title: options.estimate.title, along: "seconds",
      series: [{ label: foundLabel, colour: "--learning" }, { label: truthLabel, colour: "--best", dashed: true }],
    }),
    cost: new Plot({ title: "Cost, mean of two seconds", along: "seconds", series: two, logarithmic: true }),
  };
  const verdict = element("p", { class: "verdict" }, "Loading the physics …");
  const bar = element("progress", { max: "1", value: "0", "aria-label": "Download of the physics" });
  const guard = new GuardReport();
  const stagePlace = element("div", { class: "stage-place" }, bar);

  let pilots: [Pilot, Pilot] | null = null;
  let stage: Stage | null = null;
  let step = 0;
  let learns = true;
  let runs = true;
  let blind = false;
  let stopped = false;
  let frame = 0;
  let before = 0;
  let owed = 0;
  let told = 0;
  let pulledHalf = 0;
  let pull: { joint: number; from: Vector; to: Vector; point: Vector | null } | null = null;
  let shoved = 0;
  const columns = { error: new History(3, 25), gains: new History(1 + options.series.length, 25), estimate: new History(3, 25), cost: new History(3, 25) };
  const means = [NaN, NaN];

  const remember = () => history.replaceState(null, "", writeAddress(options.name, values));
  const learning = toggle("Learning is on", true, (on) => {
    learns = on;
    learning.textContent = on ? "Learning is on" : "Learning is off";
    if (on) pilots?.[0].controller.resume();
    else pilots?.[0].controller.freeze();
  });
  const sensor = toggle(`Unplug ${options.sensor.name}`, false, (on) => {
    blind = on;
    guard.note(on ? "the sensor is unplugged: its value is NaN" : "the sensor is plugged in again", seconds());
    if (!on) pilots?.forEach(({ controller }) => controller.clear());
  });
  const pausing = button("Pause", () => {
    runs = !runs;
    pausing.textContent = runs ? "Pause" : "Go on";
    before = 0;
    if (runs) frame = requestAnimationFrame(animate);
  });

  const seconds = () => step * (pilots?.[0].plant.dt ?? 0);

  function restart(): void {
    remember();
    if (!pilots) return;
    const gains = options.starts[values.start];
    pilots.forEach((pilot) => pilot.start(gains));
    pilots[1].controller.freeze();
    if (!learns) pilots[0].controller.freeze();
    step = owed = 0;
    means.fill(NaN);
    Object.values(columns).forEach((one) => one.clear());
    guard.clear();
    stage?.forget();
  }

  /** The force of the reader, in the coordinates of one robot. */
  function pushOn(plant: Plant): Push | null {
    const joints = plant.joints;
    if (shoved > 0) return { body: plant.body(joints - 1), point: tipIn(plant), force: options.shove };
    if (!pull) return null;
    const body = plant.body(pull.joint < 0 ? joints - 1 : pull.joint);
    pull.point ??= plant.localOf(body, pull.from);
    const at = plant.pointOf({ body, point: pull.point });
    const way = pull.to.map((to, i) => to - at[i]!) as Vector;
    const length = Math.max(Math.hypot(...way), 1e-9);
    const force = Math.min(options.pull.stiffness * length, options.pull.most);
    return { body, point: pull.point, force: way.map((one) => (one * force) / length) as Vector };
  }

  function advance(): void {
    const push = pushOn(pilots![pulledHalf]!.plant);
    const world: World = { ...options.world(values), push };
    pilots!.forEach((pilot, i) => {
      pilot.step(step, world, blind ? options.sensor.index : null);
      const { cost } = pilot.controller.info;
      if (!pilot.lies && Number.isFinite(cost)) {
        means[i] = Number.isNaN(means[i]) ? cost : means[i]! + (pilot.plant.dt / 2) * (cost - means[i]!);
      }
    });
    const [own, fixed] = pilots!;
    const time = seconds();
    guard.take(own.controller.decisions(), time);
    if (time >= FIRST) columns.error.push(() => [time, own.error / size, fixed.error / size]);
    columns.gains.push(() => [time, ...options.gains(own.controller)]);
    columns.estimate.push(() => [time, options.estimate.found(own.controller.state.a_hat), options.estimate.truth(values)]);
    columns.cost.push(() => [time, ...means] as number[]);
    stage!.follow([own.plant, fixed.plant], step);
    shoved = Math.max(0, shoved - own.plant.dt);
    step++;
  }

  function animate(now: number): void {
    if (!runs || stopped) return;
    const passed = before === 0 ? 0 : Math.min(0.06, (now - before) / 1000);
    before = now;
    owed += passed * values.speed;
    const { dt } = pilots![0].plant;
    const begin = performance.now();
    for (; owed > dt; owed -= dt) {
      advance();
      if (performance.now() - begin > 40) owed = 0; // a slow machine slows time down
    }
    if (step > 0) draw(now);
    frame = requestAnimationFrame(animate);
  }

  function draw(now: number): void {
    const [own, fixed] = pilots!;
    stage!.show([own.plant, fixed.plant], step, values.payload, pushOn(own.plant));
    if (now - told < 120) return; // plots and words change eight times a second
    told = now;
    for (const name of Object.keys(plots) as (keyof typeof plots)[]) plots[name].show(columns[name].columns);
    guard.draw(seconds());
    const [mine, theirs] = [own.error / size, fixed.error / size];
    const ratio = means[1]! / means[0]!;
    const difference = Math.abs(1 / ratio - 1) * 100;
    const compared = difference < 2 ? "the same so far" : `${difference.toFixed(0)} % ${ratio > 1 ? "lower" : "higher"} with tuning`;
    const falls = [own.crashes, fixed.crashes].map((count) => (count ? `, ${count} ${count === 1 ? "crash" : "crashes"}` : ""));
    verdict.textContent =
      `After ${seconds().toFixed(0)} s, the ${options.tracked} is ${shortNumber(mine)} ${unit} from its path with tuning${falls[0]}, ` +
      `and ${shortNumber(theirs)} ${unit} with fixed gains${falls[1]}. ` +
      `The cost, which tuning minimizes, is ${compared}.`;
    verdict.dataset.steps = `${step}`;
    verdict.dataset.ratio = ratio.toFixed(3);
    verdict.dataset.estimate = columns.estimate.columns[1]!.at(-1)!.toPrecision(4);
    stage!.describe(`Two robots side by side. ${verdict.textContent}`);
  }

  const set = <K extends keyof Settings>(name: K, then: () => void = remember) => (value: Settings[K]) => {
    values[name] = value;
    then();
  };
  const knobs = options.knobs.map(({ name, ...knob }) =>
    slider({ name, ...knob, value: values[name as "payload"], changed: set(name as "payload") }),
  );
  const controls = element(
    "div",
    { class: "controls" },
    group(
      "The controller",
      buttons(learning),
      choice({ name: "start", label: "Start gains", choices: STARTS, value: values.start, changed: set("start", restart) }),
      buttons(
        button("Restore good gains", () => {
          pilots?.[0].controller.restore();
          guard.note("you restored the last good gains", seconds());
        }),
      ),
    ),
    group(
      "Disturb both robots",
      ...knobs,
      buttons(button("Push", () => (shoved = SHOVE)), sensor),
      element("small", {}, "Drag a robot to pull both of them. Drag the background, or press an arrow key, to turn the view."),
    ),
    group(
      "Time",
      slider({ name: "speed", label: "Speed of time", low: 0.25, high: 8, value: values.speed, logarithmic: true, show: (v) => `${shortNumber(v)} ×`, changed: set("speed") }),
      buttons(pausing, button("Start again", restart)),
    ),
    takeAway(options.name, () => options.python(values), () => options.files.toml(values), {
      name: `robot_${options.name}`, source: options.files.source, header: options.files.header,
    }),
  );
  const heading = element("div", { class: "heading" }, element("h2", {}, options.heading), about(options.guide, ...options.sentences));
  const drawn = element("div", { class: "plots" }, ...Object.values(plots).map((plot) => plot.element));
  place.append(layout(heading, controls, [verdict, stagePlace], [guard.element, drawn]));
  remember();

  async function begin(): Promise<void> {
    const [mujoco, first, second] = await Promise.all([
      loadMujoco((share) => (bar.value = share)),
      options.load(),
      options.load(),
    ]);
    if (stopped) return;
    pilots = [first, second].map((controller) => {
      const random = new Random(values.seed);
      const plant = options.plant(mujoco, () => random.normal());
      return new Pilot(controller, plant, options.context(plant));
    }) as [Pilot, Pilot];
    const [own] = pilots;
    stage = new Stage({
      ...options.stage(mujoco, own.plant),
      path: own.plant.wantedTips(),
      labels: ["tunes itself", "fixed gains"],
      pulled: (pulled, half) => {
        if (pulled === null) {
          pull = null;
          return;
        }
        pulledHalf = half;
        pull = { ...pulled, point: pull?.point ?? null };
      },
    });
    stagePlace.replaceChildren(stage.element);
    restart();
    frame = requestAnimationFrame(animate);
  }
  begin().catch((error: unknown) => {
    verdict.textContent = `The robot could not be loaded: ${String(error)}`;
    bar.remove();
  });

  return () => {
    stopped = true;
    runs = false;
    cancelAnimationFrame(frame);
    stage?.free();
    pilots?.forEach(({ plant }) => plant.free());
  };
}

function tipIn(plant: Plant): Vector {
  return plant.localOf(plant.body(plant.joints - 1), plant.tip());
}

/** A button that is on or off. */
function toggle(text: string, on: boolean, changed: (on: boolean) => void): HTMLButtonElement {
  const made = button(text, () => {
    on = !on;
    made.setAttribute("aria-pressed", `${on}`);
    changed(on);
  });
  made.setAttribute("aria-pressed", `${on}`);
  return made;
}
