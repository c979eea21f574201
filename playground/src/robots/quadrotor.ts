/** The panel of the quadrotor. */
import * as three from "three";
import cSource from "../controllers/robot_quadrotor/robot_quadrotor.c?url";
import cHeader from "../controllers/robot_quadrotor/robot_quadrotor.h?url";
import { load } from "../controllers/robot_quadrotor/robot_quadrotor.mjs";
import numbers from "../controllers/robot_quadrotor.json";
import type { MjModel } from "./mujoco";
import { robotPanel } from "./panel";
import type { RobotController } from "./pilot";
import { QuadrotorPlant } from "./quadrotor_plant";
import { robotScript, robotToml } from "./scripts";
import type { Colours, Shape } from "./stage";

type QuadrotorController = RobotController & { state: { theta: Float64Array } };
/** The quadrotor is drawn larger than it is: it spans 10 cm on a path of 2 m. */
const ENLARGED = 3;

export const quadrotorPanel = robotPanel({
  name: "quadrotor",
  heading: "A quadrotor in the wind",
  guide: "robots/",
  sentences: [
    "Two equal quadrotors of 33 g fly the same figure eight (green): the blue one tunes its ten gains in flight, and the orange one keeps its first gains.",
    "Both learn wind, drag and payload; switch the wind, hang a payload on them, pull them with the mouse or unplug a sensor, and watch the guard.",
    "They fly in MuJoCo with rotors, delay and noise that their model does not know, and their controllers are the C code that selftune exports.",
  ],
  load: async () => (await load()) as unknown as RobotController,
  plant: (mujoco, noise) => new QuadrotorPlant(mujoco, numbers, noise),
  context: () => (step) => step,
  starts: { soft: { theta: numbers.gains.soft }, nominal: { theta: numbers.gains.nominal }, stiff: { theta: numbers.gains.stiff } },
  gains: (controller) => {
    const theta = (controller as QuadrotorController).state.theta;
    return [0, 1, 2, 3, 4, 5, 6, 8].map((i) => Math.exp(theta[i]!));
  },
  gainsTitle: "Gains: frequencies ω (rad/s), damping ratios ζ",
  series: [
    { label: "ω x", colour: "--learning" },
    { label: "ω y", colour: "--learning", dashed: true },
    { label: "ω z", colour: "--third" },
    { label: "ζ x", colour: "--best" },
    { label: "ζ y", colour: "--best", dashed: true },
    { label: "ζ z", colour: "--muted" },
    { label: "ω tilt", colour: "--fixed" },
    { label: "ζ tilt", colour: "--fixed", dashed: true },
  ],
  estimate: {
    title: "Payload, g", labels: ["true", "estimated, with other errors of the model"],
    truth: ({ payload }) => 1000 * payload, found: (a) => (1000 * a[5]!) / numbers.gravity,
  },
  knobs: [
    { name: "wind", label: "Wind", low: 0, high: 4, step: 0.1, show: (v) => (v === 0 ? "off" : `${v.toFixed(1)} m/s, in gusts`) },
    { name: "payload", label: "Payload", low: 0, high: 0.02, step: 0.001, show: (v) => `${(1000 * v).toFixed(0)} g` },
  ],
  defaults: { payload: 0, disturbance: 0, wind: 0 },
  world: ({ payload, wind }) => ({ payload, wind, disturbance: 0 }),
  tracked: "quadrotor",
  unit: ["cm", 1e-2],
  sensor: { index: 0, name: "position x" },
  pull: { stiffness: 0.5, most: 0.25 },
  shove: [0.25, 0.15, 0],
  stage: (_, plant) => ({
    view: { target: [0, 0, -0.1], distance: 4.8, azimuth: -80, elevation: 26, floor: -0.6 },
    shape: (colour, shown, ghost) => new QuadrotorShape(plant.model, colour, shown, ghost),
    hasGhost: true,
    payloadRadius: 0.2,
    payloadBelow: 0.075,
    arrow: 1.2,
  }),
  python: (values) => robotScript("quadrotor", values),
  files: { source: cSource, header: cHeader, toml: (values) => robotToml("quadrotor", numbers.settings, numbers.gains[values.start]) },
});

/** A body with four rotors at the places of the model's sites. */
class QuadrotorShape implements Shape {
  readonly group = new three.Group();

  constructor(model: MjModel, colour: three.Color, shown: Colours, ghost: boolean) {
    const clear = ghost ? { transparent: true, opacity: 0.22, depthWrite: false } : {};
    const shell = new three.MeshStandardMaterial({ color: colour, roughness: 0.5, ...clear });
    const frame = ghost ? shell : new three.MeshStandardMaterial({ color: shown.metal, roughness: 0.5 });
    const disc = new three.MeshStandardMaterial({ color: colour, transparent: true, opacity: ghost ? 0.15 : 0.45, depthWrite: false });
    const add = (shape: three.BufferGeometry, material: three.Material, at: [number, number, number]) => {
      const mesh = new three.Mesh(shape, material);
      mesh.position.set(...at);
      mesh.castShadow = !ghost && material !== disc;
      mesh.userData.joint = 0;
      this.group.add(mesh);
      return mesh;
    };
    add(new three.BoxGeometry(0.034, 0.026, 0.013), shell, [0, 0, 0.002]);
    for (let i = 0; i < model.nsite; i++) {
      const [x, y] = [model.site_pos[3 * i]!, model.site_pos[3 * i + 1]!];
      const beam = add(new three.CylinderGeometry(0.0032, 0.0032, Math.hypot(x, y), 12), frame, [x / 2, y / 2, 0]);
      beam.quaternion.setFromUnitVectors(new three.Vector3(0, 1, 0), new three.Vector3(x, y, 0).normalize());
      add(new three.CylinderGeometry(0.005, 0.005, 0.014, 20).rotateX(Math.PI / 2), frame, [x, y, 0.004]);
      add(new three.CylinderGeometry(0.023, 0.023, 0.001, 40).rotateX(Math.PI / 2), disc, [x, y, 0.013]);
    }
    this.group.scale.setScalar(ENLARGED);
  }

  pose(qpos: number[]): void {
    const [x, y, z, w, a, b, c] = qpos as [number, number, number, number, number, number, number];
    this.group.position.set(x, y, z);
    this.group.quaternion.set(a, b, c, w);
  }

  free(): void {}
}
