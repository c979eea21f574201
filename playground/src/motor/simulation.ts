/** A DC motor with a gear, driven by the exported PID. Only the motor is computed here. */
import type { Controller } from "../controllers/motor_pid/motor_pid.mjs";
import { Random } from "../random";

export const PERIOD = 0.005;
const SUBSTEPS = 5;
const RESISTANCE = 1.2;
const TORQUE_CONSTANT = 0.04 * 20; // at the output shaft, behind the gear
const INERTIA = 0.01 + 20 ** 2 * 2e-5;
const NOISE = 1e-3;

export interface Gains {
  kp: number;
  ki: number;
  kd: number;
}

/** What the reader can change while the motor runs. */
export interface World {
  /** A torque that pulls at the shaft, in N·m. */
  load: number;
  /** The true inertia, relative to that of the controller's model. */
  inertia: number;
  /** Coulomb friction in N·m. */
  friction: number;
}

/** One motor with its controller. */
export class Drive {
  angle = 0;
  speed = 0;
  cost = 0;
  #u = 0;
  #random: Random;

  constructor(readonly controller: Controller, gains: Gains, seed: number) {
    this.#random = new Random(seed);
    this.start(gains);
  }

  /** Start the controller anew with these gains; the motor goes on. */
  start(gains: Gains): void {
    this.controller.init({
      theta_log_kp: Math.log(gains.kp),
      theta_log_ki: Math.log(gains.ki),
      theta_log_kd: Math.log(gains.kd),
    });
  }

  get gains(): Gains {
    const { theta_log_kp, theta_log_ki, theta_log_kd } = this.controller.state;
    return { kp: Math.exp(theta_log_kp), ki: Math.exp(theta_log_ki), kd: Math.exp(theta_log_kd) };
  }

  /** One sampling period: measure, control, and move the motor. */
  step(step: number, reference: number, world: World): void {
    const measured = [this.angle + NOISE * this.#random.normal()];
    this.controller.observeState(measured);
    const u = this.controller.act(measured, { step, reference: [reference] })[0]!;
    this.cost = this.controller.info.cost;
    this.#move(this.#u, world); // the control arrives one sample late
    this.#u = u;
  }

  #move(u: number, world: World): void {
    const dt = PERIOD / SUBSTEPS;
    const inertia = INERTIA * world.inertia;
    for (let i = 0; i < SUBSTEPS; i++) {
      const torque = (TORQUE_CONSTANT * (u - TORQUE_CONSTANT * this.speed)) / RESISTANCE - world.load;
      // Friction is implicit: it stops the shaft, and never turns it back.
      const free = this.speed + (dt * torque) / inertia;
      const most = (dt * world.friction) / inertia;
      this.speed = Math.sign(free) * Math.max(0, Math.abs(free) - most);
      this.angle += dt * this.speed;
    }
  }
}

/** Steps to random levels, one for each second. */
export function referenceAt(step: number, seed: number): number {
  const level = Math.floor(step * PERIOD);
  return 3 * new Random(seed * 100_003 + level).uniform() - 1.5;
}
