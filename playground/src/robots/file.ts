/** The panel of a robot that selftune knows only from its MJCF file. */
import cSource from "../controllers/robot_file/robot_file.c?url";
import cHeader from "../controllers/robot_file/robot_file.h?url";
import { load } from "../controllers/robot_file/robot_file.mjs";
import numbers from "../controllers/robot_file.json";
import { shortNumber } from "../plot";
import { ghostOrSolid } from "./arm";
import { JointPlant } from "./joint_plant";
import type { MjModel } from "./mujoco";
import { robotPanel } from "./panel";
import type { RobotController } from "./pilot";
import { fileScript, fileToml } from "./scripts";
import { ModelShape } from "./stage";

type FileController = RobotController & { state: { theta_log_frequency: Float64Array; theta_log_damping: Float64Array } };

/** The robot as its file draws it; MuJoCo keeps it as long as the page. */
let drawn: MjModel | null = null;

export const filePanel = robotPanel({
  name: "file",
  heading: "A robot from its file, and not a number more",
  guide: "robots-from-files/",
  sentences: [
    "selftune read the MJCF file of this robot with four joints, and made the model, the controller, the path and the guard from it; nobody chose a gain, a limit or a learning rate.",
    "Two equal robots follow the same path (green): the blue one tunes its eight gains while it moves, and the orange one keeps its first gains; load them, disturb them, pull them or unplug a sensor.",
    "They live in MuJoCo with heavier links, friction, delay and slower motors than the file says, and their controllers are the C code that selftune exports.",
  ],
  load: async () => (await load()) as unknown as RobotController,
  plant: (mujoco, noise) => new JointPlant(mujoco, numbers, numbers.payload, noise),
  context: (plant) => (step) => {
    const { position, rate, acceleration } = plant.path.at(step);
    return { step, reference: [...position, ...rate, ...acceleration] };
  },
  starts: numbers.gains,
  gains: (controller) => {
    const { theta_log_frequency: frequency, theta_log_damping: damping } = (controller as FileController).state;
    return [...frequency, ...damping].map(Math.exp);
  },
  gainsTitle: "Gains: frequencies ω (rad/s), damping ratios ζ",
  series: [
    { label: "ω base", colour: "--learning" },
    { label: "ω shoulder", colour: "--third" },
    { label: "ω elbow", colour: "--best" },
    { label: "ω wrist", colour: "--fixed" },
    { label: "ζ base", colour: "--learning", dashed: true },
    { label: "ζ shoulder", colour: "--third", dashed: true },
    { label: "ζ elbow", colour: "--best", dashed: true },
    { label: "ζ wrist", colour: "--fixed", dashed: true },
  ],
  estimate: { title: "Payload, kg", labels: ["true", "estimated, with other errors of the model"], truth: ({ payload }) => payload, found: (a) => a[0]! },
  knobs: [
    { name: "payload", label: "Payload", low: 0, high: Number((2.5 * numbers.heavy).toFixed(1)), step: 0.01, show: (v) => `${v.toFixed(2)} kg` },
    { name: "disturbance", label: "Disturbing torque", low: 0, high: 1, step: 0.05, show: (v) => `${shortNumber(v * numbers.disturbance[0]!)} N·m` },
  ],
  defaults: { payload: Number(numbers.payload.toFixed(2)), disturbance: 0, wind: 0 },
  world: ({ payload, disturbance }) => ({ payload, disturbance, wind: 0 }),
  tracked: "tool",
  unit: ["mm", 1e-3],
  sensor: { index: 1, name: "angle of the shoulder" },
  pull: { stiffness: 150, most: 60 },
  shove: [40, 40, 0],
  stage: (mujoco) => {
    drawn ??= mujoco.MjModel.from_xml_string(numbers.drawn);
    const model = drawn;
    return {
      view: { target: [0.22, 0, 0.34], distance: 2.4, azimuth: -55, elevation: 16, floor: 0 },
      shape: (colour, shown, ghost) => new ModelShape(mujoco, model, ghostOrSolid(colour, shown, ghost)),
      hasGhost: true,
      payloadRadius: 0.06,
      payloadBelow: 0,
      arrow: 0.006,
    };
  },
  python: (values) => fileScript(values),
  files: { source: cSource, header: cHeader, toml: () => fileToml() },
});
