/** What all robots in MuJoCo have in common. Each corresponds to a plant of `selftune.robots`. */
import type { MainModule, MjData, MjModel } from "./mujoco";
import type { Path } from "./path";

export type Vector = [number, number, number];

/** What the reader changes while the robots run. Both robots of a panel live in the same world. */
export interface World {
  /** In kg. */
  payload: number;
  /** The share of the disturbing torques, from 0 to 1. */
  disturbance: number;
  /** In m/s. */
  wind: number;
  push: Push | null;
}

/** A force at a point of a body. */
export interface Push {
  body: number;
  /** The point in the body's own coordinates. */
  point: Vector;
  force: Vector;
}

/** Standard normal numbers. */
export type Noise = () => number;

export abstract class Plant {
  readonly model: MjModel;
  readonly data: MjData;
  readonly #scratch: MjData;
  abstract readonly dt: number;
  abstract readonly path: Path;
  abstract readonly joints: number;
  #payload = NaN;

  constructor(readonly mujoco: MainModule, xml: string) {
    this.model = mujoco.MjModel.from_xml_string(xml);
    this.data = new mujoco.MjData(this.model);
    this.#scratch = new mujoco.MjData(this.model);
  }

  /** Return to the start of the path, and return the measurement. */
  abstract reset(): number[];
  /** Put the robot on its path, as it should be at this step, and return the measurement. */
  abstract place(step: number): number[];
  /** Apply a control for one period, and return the next measurement. */
  abstract step(u: ArrayLike<number>, world: World): number[];
  /** Whether the robot is so far from its path that a person would stop it. */
  abstract hasCrashed(step: number): boolean;
  /** The true values of the model's state. */
  abstract truth(): number[];
  /** The position of the tool, in metres. */
  abstract tip(): Vector;
  /** The positions that a drawing needs: MuJoCo's qpos. */
  abstract pose(): number[];
  /** The pose of the reference. */
  abstract wantedPose(step: number): number[];
  /** The positions of the tool along the path, one for each step of a lap. */
  abstract wantedTips(): Vector[];

  /** The moving body behind a joint. */
  body(joint: number): number {
    return this.model.jnt_bodyid[joint];
  }

  free(): void {
    for (const one of [this.#scratch, this.data, this.model]) one.delete();
  }

  protected abstract setMass(payload: number): void;

  protected carry(payload: number): void {
    if (payload === this.#payload) return;
    this.#payload = payload;
    this.setMass(payload);
    this.mujoco.mj_setConst(this.model, this.#scratch); // with separate data, because it overwrites them
  }

  /** Return the force and the torque of a push at the centre of mass of its body. */
  protected wrench(push: Push): number[] {
    const at = this.pointOf(push);
    const center = this.data.xipos.subarray(3 * push.body, 3 * push.body + 3);
    const [x, y, z] = [at[0] - center[0]!, at[1] - center[1]!, at[2] - center[2]!];
    const [fx, fy, fz] = push.force;
    return [fx, fy, fz, y * fz - z * fy, z * fx - x * fz, x * fy - y * fx];
  }

  /** The point of a push in the coordinates of the world. */
  pointOf({ body, point }: Pick<Push, "body" | "point">): Vector {
    const at = this.data.xpos.subarray(3 * body, 3 * body + 3);
    const turn = this.data.xmat.subarray(9 * body, 9 * body + 9);
    return [0, 1, 2].map(
      (i) => at[i]! + turn[3 * i]! * point[0] + turn[3 * i + 1]! * point[1] + turn[3 * i + 2]! * point[2],
    ) as Vector;
  }

  /** The coordinates in a body of a point of the world. */
  localOf(body: number, point: Vector): Vector {
    const at = this.data.xpos.subarray(3 * body, 3 * body + 3);
    const turn = this.data.xmat.subarray(9 * body, 9 * body + 9);
    return [0, 1, 2].map((i) => [0, 1, 2].reduce((sum, k) => sum + turn[3 * k + i]! * (point[k]! - at[k]!), 0)) as Vector;
  }
}
