/** A quadrotor with four rotors in moving air: `QuadrotorPlant` of `selftune.robots`. */
import type { MainModule } from "./mujoco";
import { Path, type PathNumbers } from "./path";
import { Plant, type Noise, type Vector, type World } from "./plant";

export interface QuadrotorNumbers {
  dt: number;
  substeps: number;
  xml: string;
  /** How strong each rotor is, relative to its command. */
  gear: number[];
  /** From thrust and torques to the thrusts of the rotors. */
  mixer: number[][];
  mass: number;
  moments: number[];
  gravity: number;
  linearDrag: number[];
  squareDrag: number;
  wind: number[];
  noise: number[];
  follow: number;
  start: number[];
  wrench: number[];
  path: PathNumbers;
}

const BODY = 1;

export class QuadrotorPlant extends Plant {
  readonly dt: number;
  readonly path: Path;
  readonly joints = 1;
  #filtered: number[] = [];
  #late: number[] = [];
  #gust = [0, 0, 0];

  constructor(mujoco: MainModule, readonly numbers: QuadrotorNumbers, readonly noise: Noise) {
    super(mujoco, numbers.xml);
    this.dt = numbers.dt;
    this.path = new Path(numbers.path, numbers.dt);
    const width = this.model.actuator_gainprm.length / 4;
    numbers.gear.forEach((gear, i) => (this.model.actuator_gainprm[width * i] = gear));
    this.carry(0);
  }

  reset(): number[] {
    return this.#put(this.numbers.start.slice(0, 3), this.numbers.start.slice(3, 6));
  }

  place(step: number): number[] {
    const { position, rate } = this.path.at(step);
    return this.#put(position, rate);
  }

  step(u: ArrayLike<number>, world: World): number[] {
    const { mixer, substeps, follow, linearDrag, squareDrag } = this.numbers;
    const { data, model, mujoco } = this;
    this.carry(world.payload);
    const air = this.#air(world.wind);
    mixer.forEach((row, i) => (data.ctrl[i] = row.reduce((sum, share, k) => sum + share * u[k]!, 0)));
    const pushed = world.push ? this.wrench(world.push) : [0, 0, 0, 0, 0, 0];
    for (let i = 0; i < substeps; i++) {
      const flow = air.map((speed, k) => speed - data.qvel[k]!);
      const size = Math.hypot(...flow);
      const force = flow.map((speed, k) => (linearDrag[k]! + squareDrag * size) * speed + pushed[k]!);
      data.xfrc_applied.set([...force, ...pushed.slice(3)], 6 * BODY);
      mujoco.mj_step(model, data);
    }
    this.#filtered = this.#filtered.map((value, i) => value + follow * (u[i]! - value));
    const late = this.#late;
    this.#late = this.#sense();
    return [...late, ...this.#filtered];
  }

  hasCrashed(step: number): boolean {
    const { qpos } = this.data;
    const upright = 1 - 2 * (qpos[4]! ** 2 + qpos[5]! ** 2); // the cosine of the tilt
    const wanted = this.path.at(step).position;
    return !(upright > -0.17 && Math.hypot(...wanted.map((value, i) => qpos[i]! - value)) < 3);
  }

  truth(): number[] {
    return this.#body();
  }

  tip(): Vector {
    return [...this.data.qpos.subarray(0, 3)] as Vector;
  }

  pose(): number[] {
    return [...this.data.qpos];
  }

  wantedPose(step: number): number[] {
    return [...this.path.at(step).position, 1, 0, 0, 0];
  }

  wantedTips(): Vector[] {
    return Array.from({ length: this.path.lap }, (_, step) => this.path.at(step).position as Vector);
  }

  protected setMass(payload: number): void {
    const { mass, moments } = this.numbers;
    this.model.body_mass[BODY] = mass + payload;
    moments.forEach((moment, i) => (this.model.body_inertia[3 * BODY + i] = moment * (1 + (0.2 * payload) / mass)));
  }

  #put(position: number[], velocity: number[]): number[] {
    const { data, model, mujoco, numbers } = this;
    mujoco.mj_resetData(model, data);
    data.qpos.set(position);
    data.qvel.set(velocity);
    data.act.fill((numbers.mass * numbers.gravity) / 4);
    this.#filtered = [...numbers.wrench];
    this.#gust = [0, 0, 0];
    mujoco.mj_forward(model, data);
    this.#late = this.#sense();
    return [...this.#late, ...this.#filtered];
  }

  #body(): number[] {
    const { qpos, qvel } = this.data;
    return [...qpos.subarray(0, 3), ...qvel.subarray(0, 3), ...rotationVector(qpos.subarray(3, 7)), ...qvel.subarray(3, 6)];
  }

  #sense(): number[] {
    return this.#body().map((value, i) => value + this.numbers.noise[i]! * this.noise());
  }

  /** The velocity of the air: gusts of about a second around a steady wind. */
  #air(wind: number): number[] {
    if (wind === 0) return [0, 0, 0];
    const { dt, wind: usual } = this.numbers;
    const size = Math.hypot(...usual);
    this.#gust = this.#gust.map((gust) => gust - dt * gust + 0.6 * Math.sqrt(2 * dt) * this.noise());
    return usual.map((speed, i) => (wind * speed) / size + (wind / size) * this.#gust[i]!);
  }
}

/** Axis times angle, with an angle of at most π. */
export function rotationVector(quaternion: ArrayLike<number>): number[] {
  const sign = quaternion[0]! < 0 ? -1 : 1;
  const [w, x, y, z] = [0, 1, 2, 3].map((i) => sign * quaternion[i]!) as [number, number, number, number];
  const sine = Math.hypot(x, y, z);
  const scale = sine < 1e-12 ? 2 : (2 * Math.atan2(sine, w)) / sine;
  return [x * scale, y * scale, z * scale];
}
