/** One robot with its controller: what a control computer does in each period. */
import type { Plant, Vector, World } from "./plant";

/** The part of an exported controller that all robots share. */
export interface RobotController {
  readonly state: { readonly a_hat: Float64Array; readonly guard_window_rollbacks: number };
  readonly info: { readonly cost: number; readonly guard_decisions: number };
  init(start?: Record<string, ArrayLike<number>>): void;
  act(x: ArrayLike<number>, t: never): Float64Array;
  observeState(x: ArrayLike<number>): number;
  freeze(): void;
  resume(): void;
  restore(): void;
  clear(): void;
  decisions(): string[];
}

/** A crashed robot is put back onto its path after this many seconds. */
export const LYING = 1.5;

export class Pilot {
  /** The squared distances of the tool from its path in the last lap, in m², and their sum. */
  readonly #squares: number[] = [];
  #sum = 0;
  crashes = 0;
  control: Float64Array = new Float64Array(0);
  #measured: number[] = [];
  #acted = false;
  #lies = 0;
  readonly #wanted: Vector[];

  constructor(
    readonly controller: RobotController,
    readonly plant: Plant,
    readonly context: (step: number) => unknown,
  ) {
    this.#wanted = plant.wantedTips();
  }

  start(gains: Record<string, ArrayLike<number>>): void {
    this.controller.init(gains);
    this.#measured = this.plant.reset();
    this.#acted = false;
    this.#lies = this.crashes = 0;
    this.#squares.length = this.#sum = 0;
  }

  /** The root mean square of the distance in the last lap, in metres. */
  get error(): number {
    return Math.sqrt(Math.max(0, this.#sum) / Math.max(1, this.#squares.length));
  }

  get lies(): boolean {
    return this.#lies > 0;
  }

  /** One period. With `blind`, this number of the measurement is missing. */
  step(step: number, world: World, blind: number | null): void {
    if (this.#lies > 0) return this.#lie(step);
    const measured = blind === null ? this.#measured : this.#measured.map((value, i) => (i === blind ? NaN : value));
    if (this.#acted) this.controller.observeState(measured);
    this.control = this.controller.act(measured, this.context(step) as never);
    this.#acted = true;
    this.#remember(step);
    this.#measured = this.plant.step(this.control, world);
    if (this.plant.hasCrashed(step + 1)) {
      this.crashes++;
      this.#lies = LYING;
    }
  }

  #remember(step: number): void {
    const lap = this.#wanted.length;
    const [tip, wanted] = [this.plant.tip(), this.#wanted[step % lap]!];
    const square = tip.reduce((sum, one, i) => sum + (one - wanted[i]!) ** 2, 0);
    this.#sum += square - (this.#squares[step % lap] ?? 0);
    this.#squares[step % lap] = square;
  }

  #lie(step: number): void {
    this.#lies -= this.plant.dt;
    if (this.#lies > 0) return;
    this.#lies = 0;
    this.#measured = this.plant.place(step + 1);
    this.controller.clear();
    this.#acted = false; // the jump back is no transition to learn from
  }
}
