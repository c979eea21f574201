import cSource from "../controllers/motor_pid/motor_pid.c?url";
import cHeader from "../controllers/motor_pid/motor_pid.h?url";
import { load } from "../controllers/motor_pid/motor_pid.mjs";
import textbook from "../controllers/motor_gains.json";
import { about, button, buttons, choice, element, group, layout, slider, takeAway } from "../controls";
import { History } from "../history";
import { Plot, shortNumber } from "../plot";
import { withDefaults, writeAddress } from "../settings";
import { pythonScript, tomlFile } from "./python";
import { Drive, PERIOD, referenceAt, type Gains, type World } from "./simulation";

const STARTS = { low: "ten times too low", nominal: "good for the model", high: "ki ten times too high" };
const RIVALS = { start: "the start gains, held", zieglerNichols: "Ziegler–Nichols" };
const DEFAULTS = { start: "low", rival: "start", load: 0, inertia: 1, friction: 0.3, speed: 2, seed: 3 };
const RANGES = {
  start: Object.keys(STARTS),
  rival: Object.keys(RIVALS),
  load: [-2, 2] as [number, number],
  inertia: [0.5, 3] as [number, number],
  friction: [0, 1] as [number, number],
  speed: [0.5, 50] as [number, number],
  seed: [0, 99_999] as [number, number],
};
/** The plot of the angle shows this many seconds. */
const SHOWN = 8;

function startGains(start: string): Gains {
  const { kp, ki, kd } = textbook.nominal;
  if (start === "low") return { kp: kp / 10, ki: ki / 10, kd: kd / 10 };
  return start === "high" ? { kp, ki: 10 * ki, kd } : { kp, ki, kd };
}

export function motorPanel(place: HTMLElement, given: URLSearchParams): () => void {
  const values = withDefaults(DEFAULTS, given, RANGES);
  values.seed = Math.round(values.seed);
  const two = [
    { label: "tunes itself", colour: "--learning" },
    { label: "held gains", colour: "--fixed" },
  ];
  const plots = {
    angle: new Plot({
      title: "Angle of the shaft, rad", along: "seconds",
      series: [{ label: "wanted", colour: "--best", dashed: true }, ...two], range: [-2.4, 2.4],
    }),
    gains: new Plot({
      title: "Gains that tune themselves", along: "seconds", logarithmic: true,
      series: [
        { label: "Kp", colour: "--learning" },
        { label: "Ki", colour: "--third" },
        { label: "Kd", colour: "--best" },
      ],
    }),
    cost: new Plot({ title: "Cost, mean of two seconds", along: "seconds", logarithmic: true, series: two }),
  };
  const dials = { own: dial("tunes itself", "--learning"), rival: dial("held gains", "--fixed") };
  const verdict = element("p", { class: "verdict" }, "Loading the controller …");
  const learning = button("Learning is on", () => setLearning(!learns));
  learning.setAttribute("aria-pressed", "true");
  const pausing = button("Pause", () => {
    runs = !runs;
    pausing.textContent = runs ? "Pause" : "Go on";
    if (runs) frame = requestAnimationFrame(animate);
  });

  let own: Drive | null = null;
  let rival: Drive | null = null;
  let step = 0;
  let learns = true;
  let runs = true;
  let frame = 0;
  let before = 0;
  let owed = 0;
  const recent: number[][] = [[], [], [], []];
  const slow = new History(4, 20);
  const costs = new History(3, 20);
  const means = { own: NaN, rival: NaN };

  const world = (): World => values;
  const remember = () => history.replaceState(null, "", writeAddress("motor", values));

  function setLearning(on: boolean): void {
    learns = on;
    if (on) own?.controller.resume();
    else own?.controller.freeze();
    learning.textContent = on ? "Learning is on" : "Learning is off";
    learning.setAttribute("aria-pressed", `${on}`);
  }

  function rivalGains(): Gains {
    return values.rival === "start" ? startGains(values.start) : textbook.zieglerNichols;
  }

  function restart(): void {
    if (own === null || rival === null) return;
    own = new Drive(own.controller, startGains(values.start), values.seed);
    rival = new Drive(rival.controller, rivalGains(), values.seed);
    rival.controller.freeze();
    setLearning(learns);
    step = owed = 0;
    recent.forEach((column) => (column.length = 0));
    slow.clear();
    costs.clear();
    means.own = means.rival = NaN;
    remember();
  }

  function advance(): void {
    const reference = referenceAt(step, values.seed);
    own!.step(step, reference, world());
    rival!.step(step, reference, world());
    const time = step * PERIOD;
    const weight = Number.isNaN(means.own) ? 1 : PERIOD / 2;
    means.own = Number.isNaN(means.own) ? own!.cost : means.own + weight * (own!.cost - means.own);
    means.rival = Number.isNaN(means.rival) ? rival!.cost : means.rival + weight * (rival!.cost - means.rival);
    if (step % 4 === 0) push(recent, SHOWN / (4 * PERIOD), time, reference, own!.angle, rival!.angle);
    slow.push(() => {
      const { kp, ki, kd } = own!.gains;
      return [time, kp, ki, kd];
    });
    costs.push(() => [time, means.own, means.rival]);
    step++;
  }

  function animate(now: number): void {
    if (!runs) {
      before = 0;
      return;
    }
    const passed = before === 0 ? 0 : Math.min(0.1, (now - before) / 1000);
    before = now;
    owed += passed * values.speed;
    for (; owed > PERIOD; owed -= PERIOD) advance();
    if (step > 0) draw();
    frame = requestAnimationFrame(animate);
  }

  function draw(): void {
    plots.angle.show(recent);
    plots.gains.show(slow.columns);
    plots.cost.show(costs.columns);
    const reference = referenceAt(step, values.seed);
    dials.own.turn(own!.angle, reference);
    dials.rival.turn(rival!.angle, reference);
    const { kp, ki, kd } = own!.gains;
    const decisions = own!.controller.decisions().filter((name) => name !== "STILL" && name !== "LIMITED");
    verdict.textContent =
      `After ${(step * PERIOD).toFixed(0)} s: Kp ${shortNumber(kp)}, Ki ${shortNumber(ki)}, Kd ${shortNumber(kd)}. ` +
      `Its cost is now ${shortNumber((100 * means.own) / means.rival)} % of the cost with held gains.` +
      (decisions.length ? ` Guard: ${decisions.join(", ").toLowerCase()}.` : "");
  }

  const set = <K extends keyof typeof values>(name: K, then: () => void = remember) => (value: (typeof values)[K]) => {
    values[name] = value;
    then();
  };
  const controls = element(
    "div",
    { class: "controls" },
    group(
      "The controller",
      buttons(learning),
      choice({ name: "start", label: "Start gains", choices: STARTS, value: values.start as keyof typeof STARTS, changed: set("start", restart) }),
      choice({ name: "rival", label: "Compare with", choices: RIVALS, value: values.rival as keyof typeof RIVALS, changed: set("rival", restart) }),
    ),
    group(
      "The motor",
      slider({ name: "load", label: "Load", low: -2, high: 2, value: values.load, step: 0.05, show: (v) => `${v.toFixed(2)} N·m`, changed: set("load") }),
      slider({ name: "inertia", label: "True inertia", low: 0.5, high: 3, value: values.inertia, logarithmic: true, show: (v) => `${shortNumber(v)} × the model's`, changed: set("inertia") }),
      slider({ name: "friction", label: "Friction", low: 0, high: 1, value: values.friction, step: 0.02, show: (v) => `${v.toFixed(2)} N·m`, changed: set("friction") }),
    ),
    group(
      "Time",
      slider({ name: "speed", label: "Speed of time", low: 0.5, high: 50, value: values.speed, logarithmic: true, show: (v) => `${shortNumber(v)} ×`, changed: set("speed") }),
      buttons(pausing, button("Start again", restart)),
    ),
    takeAway("motor_pid", () => pythonScript(startGains(values.start), values), tomlFile, { name: "motor_pid", source: cSource, header: cHeader }),
  );
  const heading = element(
    "div",
    { class: "heading" },
    element("h2", {}, "A PID that keeps itself tuned"),
    about(
      "loops/",
      "Two equal motors turn a shaft to the same angles: one PID tunes its three gains while it runs, the other keeps its gains.",
      "Pull at the shaft with the load, change the inertia or the friction, and watch Kp, Ki and Kd move; nobody chose a learning rate.",
      "Both controllers are the C code that selftune exports for a microcontroller, with its guard, compiled to WebAssembly.",
    ),
  );
  const shown = element("div", { class: "dials" }, dials.own.element, dials.rival.element);
  const drawn = element("div", { class: "plots" }, plots.gains.element, plots.cost.element);
  place.append(layout(heading, controls, [verdict, shown, plots.angle.element], [drawn]));

  let stopped = false;
  Promise.all([load(), load()]).then(
    ([first, second]) => {
      if (stopped) return;
      own = new Drive(first, startGains(values.start), values.seed);
      rival = new Drive(second, rivalGains(), values.seed);
      restart();
      frame = requestAnimationFrame(animate);
    },
    (error: unknown) => {
      verdict.textContent = `The controller could not be loaded: ${String(error)}`;
    },
  );
  return () => {
    stopped = true;
    runs = false;
    cancelAnimationFrame(frame);
  };
}

function push(columns: number[][], most: number, ...values: number[]): void {
  columns.forEach((column, i) => {
    column.push(values[i]!);
    if (column.length > most) column.shift();
  });
}

/** A shaft, seen from its end, with a mark for the wanted angle. */
function dial(label: string, colour: string): { element: HTMLElement; turn: (angle: number, wanted: number) => void } {
  const svg = `<svg viewBox="-60 -60 120 120" aria-hidden="true">
    <circle r="50" fill="none" stroke="var(--line)" stroke-width="2" />
    <g class="wanted"><path d="M0 -58 l-6 -0 6 12 6 -12 z" fill="var(--best)" /></g>
    <g class="shaft"><circle r="34" fill="var(${colour})" opacity="0.18" /><circle r="6" fill="var(${colour})" />
    <rect x="-3" y="-46" width="6" height="46" rx="3" fill="var(${colour})" /></g></svg>`;
  const figure = element("figure");
  figure.innerHTML = svg;
  figure.append(element("figcaption", {}, label));
  const [shaft, wanted] = ["shaft", "wanted"].map((name) => figure.querySelector(`.${name}`)!);
  return {
    element: figure,
    turn(angle, target) {
      shaft!.setAttribute("transform", `rotate(${(angle * 180) / Math.PI})`);
      wanted!.setAttribute("transform", `rotate(${(target * 180) / Math.PI})`);
    },
  };
}
