/** The panel of the planar arm. */
import { BoxGeometry, CylinderGeometry, Mesh, MeshStandardMaterial, type Color } from "three";
import cSource from "../controllers/robot_arm/robot_arm.c?url";
import cHeader from "../controllers/robot_arm/robot_arm.h?url";
import { load } from "../controllers/robot_arm/robot_arm.mjs";
import numbers from "../controllers/robot_arm.json";
import { shortNumber } from "../plot";
import { JointPlant } from "./joint_plant";
import { robotPanel } from "./panel";
import type { RobotController } from "./pilot";
import { ModelShape, type Colours } from "./stage";
import { robotScript, robotToml } from "./scripts";

type ArmController = RobotController & { state: { theta: Float64Array } };

export const ghostOrSolid = (colour: Color, shown: Colours, ghost: boolean) => (rgba: ArrayLike<number>) => {
  if (ghost) return new MeshStandardMaterial({ color: colour, transparent: true, opacity: 0.22, depthWrite: false });
  const isHub = rgba[0]! < 0.4;
  return new MeshStandardMaterial({ color: isHub ? shown.metal : colour, roughness: 0.5 });
};

export const armPanel = robotPanel({
  name: "arm",
  heading: "An arm with a payload that nobody told it about",
  guide: "robots/",
  sentences: [
    "Two equal arms follow the same path (green): the blue arm tunes its gains while it moves, and the orange arm keeps its first gains.",
    "Both learn the unknown payload and friction; hang a payload on them, disturb them, pull them with the mouse or unplug a sensor, and watch the guard.",
    "The arms live in MuJoCo with masses, friction, delay and motors that their model does not know, and their controllers are the C code that selftune exports.",
  ],
  load: async () => (await load()) as unknown as RobotController,
  plant: (mujoco, noise) => new JointPlant(mujoco, numbers, numbers.payload, noise),
  context: () => (step) => step,
  starts: { soft: { theta: numbers.gains.soft }, nominal: { theta: numbers.gains.nominal }, stiff: { theta: numbers.gains.stiff } },
  gains: (controller) => Array.from((controller as ArmController).state.theta, Math.exp),
  gainsTitle: "Gains: frequencies ω (rad/s), damping ratios ζ",
  series: [
    { label: "ω₁", colour: "--learning" },
    { label: "ω₂", colour: "--third" },
    { label: "ζ₁", colour: "--best" },
    { label: "ζ₂", colour: "--fixed" },
  ],
  estimate: { title: "Payload, kg", labels: ["true", "estimated, with other errors of the model"], truth: ({ payload }) => payload, found: (a) => a[0]! },
  knobs: [
    { name: "payload", label: "Payload", low: 0, high: 1, step: 0.05, show: (v) => `${v.toFixed(2)} kg` },
    { name: "disturbance", label: "Disturbing torque", low: 0, high: 1, step: 0.05, show: (v) => `${shortNumber(v * numbers.disturbance[0]!)} N·m` },
  ],
  defaults: { payload: numbers.payload, disturbance: 0, wind: 0 },
  world: ({ payload, disturbance }) => ({ payload, disturbance, wind: 0 }),
  tracked: "tool",
  unit: ["mm", 1e-3],
  sensor: { index: 0, name: "angle of joint 1" },
  pull: { stiffness: 60, most: 25 },
  shove: [25, 0, 10],
  stage: (mujoco, plant) => ({
    view: { target: [0.16, 0, -0.36], distance: 2.55, azimuth: -68, elevation: 14, floor: -0.95 },
    shape: (colour, shown, ghost) =>
      new ModelShape(mujoco, plant.model, ghostOrSolid(colour, shown, ghost), { skipped: plant.model.body("payload").id, hubs: ghost ? 0 : 0.034 }),
    furniture: stand,
    hasGhost: true,
    payloadRadius: 0.075,
    payloadBelow: 0,
    arrow: 0.012,
  }),
  python: (values) => robotScript("arm", values),
  files: { source: cSource, header: cHeader, toml: (values) => robotToml("arm", numbers.settings, numbers.gains[values.start]) },
});

/** A column beside the arm that carries its first joint. */
function stand(shown: Colours): Mesh[] {
  const metal = new MeshStandardMaterial({ color: shown.metal, roughness: 0.7 });
  const column = new Mesh(new BoxGeometry(0.07, 0.07, 1.0), metal);
  column.position.set(0, 0.13, -0.45);
  const axle = new Mesh(new CylinderGeometry(0.022, 0.022, 0.14, 24), metal);
  axle.position.set(0, 0.07, 0);
  const foot = new Mesh(new BoxGeometry(0.34, 0.24, 0.03), metal);
  foot.position.set(0, 0.13, -0.935);
  return [column, axle, foot].map((one) => Object.assign(one, { castShadow: true, receiveShadow: true }));
}
