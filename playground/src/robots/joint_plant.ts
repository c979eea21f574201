/** An arm whose motors follow their commands with a lag: `ArmPlant` and `FileArmPlant` of `selftune.robots`. */
import type { MainModule } from "./mujoco";
import { Path, type PathNumbers } from "./path";
import { Plant, type Noise, type Vector, type World } from "./plant";

export interface JointNumbers {
  dt: number;
  substeps: number;
  xml: string;
  /** The place of each joint in MuJoCo's arrays. */
  order: number[];
  /** Damping and friction of the joints, if they are not in the XML. */
  damping?: number[];
  friction?: number[];
  limits: number[];
  /** The share by which the torque of the model follows its command in one period. */
  follow: number;
  /** The delay of the measurement, in periods. */
  delay: number;
  noise: number[];
  crash: number[];
  start: number[];
  disturbance: number[];
  path: PathNumbers;
}

export class JointPlant extends Plant {
  readonly dt: number;
  readonly path: Path;
  readonly joints: number;
  readonly #payloadBody: number;
  #torque: number[] = [];
  #past: number[][] = [];

  constructor(mujoco: MainModule, readonly numbers: JointNumbers, payload: number, readonly noise: Noise) {
    super(mujoco, numbers.xml);
    this.dt = numbers.dt;
    this.joints = numbers.order.length;
    this.path = new Path(numbers.path, numbers.dt);
    this.#payloadBody = this.model.body("payload").id;
    if (numbers.damping) this.model.dof_damping.set(numbers.damping);
    if (numbers.friction) this.model.dof_frictionloss.set(numbers.friction);
    this.carry(payload);
  }

  reset(): number[] {
    return this.#put(this.numbers.start, this.numbers.start.map(() => 0));
  }

  place(step: number): number[] {
    const { position, rate } = this.path.at(step);
    return this.#put(position, rate);
  }

  step(u: ArrayLike<number>, world: World): number[] {
    const { limits, follow, order, substeps, disturbance } = this.numbers;
    const { data, model, mujoco } = this;
    this.carry(Math.max(world.payload, 1e-9));
    for (let i = 0; i < this.joints; i++) {
      const command = Math.min(Math.max(u[i]!, -limits[i]!), limits[i]!);
      data.ctrl[i] = command;
      data.qfrc_applied[order[i]!] = world.disturbance * disturbance[i]!;
      this.#torque[i]! += follow * (command - this.#torque[i]!);
    }
    data.xfrc_applied.fill(0);
    if (world.push) data.xfrc_applied.set(this.wrench(world.push), 6 * world.push.body);
    for (let i = 0; i < substeps; i++) mujoco.mj_step(model, data);
    this.#past.push(this.#motion());
    this.#past.shift();
    return this.#measurement();
  }

  hasCrashed(step: number): boolean {
    const { position, rate } = this.path.at(step);
    const wanted = [...position, ...rate];
    // Written so that NaN counts as a crash too.
    return !this.#past.at(-1)!.every((value, i) => Math.abs(value - wanted[i]!) < this.numbers.crash[i]!);
  }

  truth(): number[] {
    return [...this.#past.at(-1)!, ...this.data.act];
  }

  tip(): Vector {
    this.mujoco.mj_kinematics(this.model, this.data); // the last step moved the joints after it
    return [...this.data.xpos.subarray(3 * this.#payloadBody, 3 * this.#payloadBody + 3)] as Vector;
  }

  pose(): number[] {
    return this.#past.at(-1)!.slice(0, this.joints);
  }

  wantedPose(step: number): number[] {
    return this.path.at(step).position;
  }

  wantedTips(): Vector[] {
    const data = new this.mujoco.MjData(this.model);
    const body = 3 * this.#payloadBody;
    const tips = Array.from({ length: this.path.lap }, (_, step) => {
      this.wantedPose(step).forEach((angle, i) => (data.qpos[this.numbers.order[i]!] = angle));
      this.mujoco.mj_kinematics(this.model, data);
      return [...data.xpos.subarray(body, body + 3)] as Vector;
    });
    data.delete();
    return tips;
  }

  protected setMass(payload: number): void {
    this.model.body_mass[this.#payloadBody] = payload;
  }

  #put(angles: number[], rates: number[]): number[] {
    const { order, limits, delay } = this.numbers;
    const { data, model, mujoco } = this;
    mujoco.mj_resetData(model, data);
    order.forEach((place, i) => {
      data.qpos[place] = angles[i]!;
      data.qvel[place] = rates[i]!;
    });
    mujoco.mj_forward(model, data);
    // At the start, the motors hold the arm against gravity.
    order.forEach((place, i) => {
      const bias = data.qfrc_bias[place]! - (this.numbers.damping ? data.qfrc_passive[place]! : 0);
      data.act[i] = Math.min(Math.max(bias, -limits[i]!), limits[i]!);
    });
    this.#torque = [...data.act];
    this.#past = Array.from({ length: delay + 1 }, () => this.#motion());
    return this.#measurement();
  }

  #motion(): number[] {
    const { order } = this.numbers;
    return [...order.map((place) => this.data.qpos[place]!), ...order.map((place) => this.data.qvel[place]!)];
  }

  #measurement(): number[] {
    return [...this.#past[0]!.map((value, i) => value + this.numbers.noise[i]! * this.noise()), ...this.#torque];
  }
}
